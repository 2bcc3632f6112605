"""The paper's third experiment: objects in a room, composed, counted and compared with exact masses."""
