// Keys and clicks. An answer carries the picture that is on the screen and loaded, so that a second key that was
// pressed too early cannot label a picture that nobody has seen.
const keys = {a: "accept", arrowright: "accept", r: "reject", arrowleft: "reject", u: "undo", z: "undo", backspace: "undo"};

window.answer = (what, name) => {
  const picture = document.getElementById("picture");
  if ((what === "accept" || what === "reject") && !(picture && picture.complete)) return;
  emitEvent("answer", {what: what, name: name ?? "", picture: picture ? picture.dataset.picture : ""});
};

document.addEventListener("keydown", (event) => {
  const what = keys[event.key.toLowerCase()];
  const undo = event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey);
  if (event.repeat || !what || ((event.ctrlKey || event.metaKey || event.altKey) && !undo)) return;
  event.preventDefault();
  window.answer(what);
});
