// A whole perceptron of width 512 in one kernel: activations never leave the chip.
//
//     h = silu(x first + offset_a),   h = silu(h W_l + b_l) for l = 1..layers,   out = h last + last_bias
//
// Operands are fp16, sums fp32. silu(z) = y + y tanh(y) with y = z / 2; first, offset, W and b come halved.
//
// Who does what. One block a multiprocessor, three warpgroups: one fetches weights, two multiply. A block takes tiles
// of 128 rows of one condition, 64 to a multiplying warpgroup. Those 64 rows of h (64 KB) stay in shared memory and are
// overwritten in place, layer by layer, by the warpgroup that reads them, so the two never wait for each other's rows.
// A layer is two chunks of 256 columns: 128 sums a thread, and the finished first chunk waits in 64 registers, packed,
// until the second no longer needs h.
//
// Weights stream through a ring of six slots, each 32 (k) x 256 (n): 16 KB, 2 x 256 cycles of tensor cores. They lie in
// memory as the very images the ring holds, in order of use, so a slot is one plain bulk copy. A cluster of two blocks
// reads each slot once: either block fetches half and sends it to both.
//
// Overlap. The two multiplying warpgroups share slots but are kept a turn apart, so that one finishes a chunk (bias,
// tanh, stores) while the other has the tensor cores. The ring's depth bounds how far apart they may be.
//
// Shared-memory layout: h in rows of 64 halves (128 bytes), the 16-byte piece j of row r at place j ^ (r % 8); weights,
// one row for each output column, in rows of 32 halves (64 bytes), piece j at place j ^ (r / 2 % 4): the tensor
// cores' 128- and 64-byte swizzles, free of bank conflicts.
//
// Shared memory: h 2 x 64 KB, ring 96 KB, barriers and the next tile's x 3 KB: all 227 KB. Registers: 232 a multiplying
// thread (128 sums, 64 waiting), 40 a fetching one.
//
// Compiled with -DDIM=d, 1 <= d <= 64. Plain PTX throughout, since NVRTC ships without headers.

#ifndef DIM
#define DIM 2
#endif
#ifndef CLUSTER
#define CLUSTER 2  // blocks that share one reading of the weights: 1 or 2
#endif
#ifndef DEPTH
#define DEPTH 32  // k of one slot: 32 or 64; the ring is 96 KB either way
#endif
#ifndef TURN
#define TURN (128 / DEPTH)  // slots a warpgroup multiplies before the other's turn, fewer than the ring's; 0: no turns
#endif
// For timing alone, with wrong answers: SKIP_TANH, SKIP_PRODUCTS and SKIP_FETCH leave out one kind of work each.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int WIDTH = 512, CHUNK = 256;
constexpr int CHUNKS = WIDTH / CHUNK, STEPS = WIDTH / DEPTH;
constexpr int ROWS = 64, TILE = 2 * ROWS;                  // of a warpgroup, of a block
constexpr int SLOTS = 192 / DEPTH, SLOT_BYTES = CHUNK * DEPTH * 2;
constexpr int PANEL_BYTES = ROWS * 128;                    // 64 rows x 64 columns of h
constexpr int H_BYTES = WIDTH / 64 * PANEL_BYTES;          // h of one warpgroup
constexpr int RING_AT = 2 * H_BYTES, FULL_AT = RING_AT + SLOTS * SLOT_BYTES, EMPTY_AT = FULL_AT + 8 * SLOTS;
constexpr int OUT_BLOCKS = (DIM + 7) / 8;                  // columns of the last layer in eights
constexpr int UNROLL = DIM < 4 ? DIM : 1;
constexpr bool STAGED = DIM <= 5;                          // the next tile's rows of x fit beside the ring
constexpr int X_AT = EMPTY_AT + 8 * SLOTS, PIECES = STAGED ? (ROWS * DIM + 127) / 128 : 1;

// ---- Barriers, copies and fences ------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n .reg .pred done;\n"
        "again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n @!done bra again;\n}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrive at the barrier that lies at this address in block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 rank) {
#if CLUSTER == 1
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#else
    asm volatile(
        "{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %0, %1;\n"
        " mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
        "r"(rank)
        : "memory");
#endif
}

__device__ __forceinline__ void cluster_sync() {
#if CLUSTER == 1
    __syncthreads();
#else
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

#define COPY "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"

// Fetch this block's share of a slot and hand it to every block of the cluster.
__device__ __forceinline__ void fetch(u32 target, const char* source, u32 barrier, u32 rank) {
    constexpr u32 share = SLOT_BYTES / CLUSTER;
#if CLUSTER == 1
    asm volatile(COPY " [%0], [%1], %2, [%3];" ::"r"(target), "l"(source), "r"(share), "r"(barrier) : "memory");
#else
    asm volatile(COPY ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(target + rank * share),
                 "l"(source + rank * share), "r"(share), "r"(barrier), "h"((unsigned short)((1 << CLUSTER) - 1))
                 : "memory");
#endif
}

// A barrier of some of the block's threads, by number.
__device__ __forceinline__ void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Ordinary stores to shared memory become visible to the tensor cores.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Arithmetic -----------------------------------------------------------------------------------------------------

// silu(2 low), silu(2 high) as a pair of halves: y + y tanh(y), rounded once. The special function takes float32: it is
// exact to 1e-5 there; on halves it is 3e-4 too small on average, which moved SW2 by 0.4 %, and no faster.
__device__ __forceinline__ u32 silu_pair(float low, float high) {
#ifndef SKIP_TANH
    float a, b;
    asm("tanh.approx.f32 %0, %1;" : "=f"(a) : "f"(low));
    asm("tanh.approx.f32 %0, %1;" : "=f"(b) : "f"(high));
    low = fmaf(low, a, low), high = fmaf(high, b, high);
#endif
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// What the tensor cores want to know of an operand: address / 16, bytes from 8 rows to the next 8, swizzle.
template <int ROW_BYTES>
__device__ __forceinline__ u64 describe(u32 address) {
    constexpr u64 swizzle = 128 / ROW_BYTES, stride = 8 * ROW_BYTES;
    return (u64)((address & 0x3FFFF) >> 4) | (u64)1 << 16 | stride >> 4 << 32 | swizzle << 62;
}

#define R8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define F8(i) \
    "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), "+f"(s[i + 6]), \
        "+f"(s[i + 7])

// s (+)= A B, 64 x 256 x 16. Sum s[4 j + 2 v + e] of lane 4 g + q in warp w: row 16 w + 8 v + g, column 8 j + 2 q + e.
__device__ __forceinline__ void multiply(float (&s)[128], u64 a, u64 b, int accumulate) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        R8(0, 1, 2, 3, 4, 5, 6, 7) "," R8(8, 9, 10, 11, 12, 13, 14, 15) ","
        R8(16, 17, 18, 19, 20, 21, 22, 23) "," R8(24, 25, 26, 27, 28, 29, 30, 31) ","
        R8(32, 33, 34, 35, 36, 37, 38, 39) "," R8(40, 41, 42, 43, 44, 45, 46, 47) ","
        R8(48, 49, 50, 51, 52, 53, 54, 55) "," R8(56, 57, 58, 59, 60, 61, 62, 63) ","
        R8(64, 65, 66, 67, 68, 69, 70, 71) "," R8(72, 73, 74, 75, 76, 77, 78, 79) ","
        R8(80, 81, 82, 83, 84, 85, 86, 87) "," R8(88, 89, 90, 91, 92, 93, 94, 95) ","
        R8(96, 97, 98, 99, 100, 101, 102, 103) "," R8(104, 105, 106, 107, 108, 109, 110, 111) ","
        R8(112, 113, 114, 115, 116, 117, 118, 119) "," R8(120, 121, 122, 123, 124, 125, 126, 127)
        "}, %128, %129, p, 1, 1, 0, 0;\n}\n"
        : F8(0), F8(8), F8(16), F8(24), F8(32), F8(40), F8(48), F8(56), F8(64), F8(72), F8(80), F8(88), F8(96), F8(104),
          F8(112), F8(120)
        : "l"(a), "l"(b), "r"(accumulate));
}

// The sums belong to the tensor cores between `begin` and the matching `settle`.
__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void settle() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// out += h last, 16 x 8 x 16 in one warp: the layout of a product's sums is that of the next product's left operand.
__device__ __forceinline__ void project(float* out, u32 h0, u32 h1, u32 h2, u32 h3, uint2 last) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(out[0]), "+f"(out[1]), "+f"(out[2]), "+f"(out[3])
        : "r"(h0), "r"(h1), "r"(h2), "r"(h3), "r"(last.x), "r"(last.y));
}

// ---- The multiplying warpgroups -------------------------------------------------------------------------------------

struct Ring {
    u32 base, slot, parity;
    __device__ __forceinline__ u32 full() const { return base + FULL_AT + 8 * slot; }
    __device__ __forceinline__ u32 empty() const { return base + EMPTY_AT + 8 * slot; }
    __device__ __forceinline__ u32 data() const { return base + RING_AT + slot * SLOT_BYTES; }
    __device__ __forceinline__ void advance() {
        if (++slot == SLOTS) slot = 0, parity ^= 1;
    }
};

// Each warp tells every block of the cluster that it is done with a slot.
__device__ __forceinline__ void release(u32 empty, int lane) {
    if (lane < CLUSTER) barrier_arrive(empty, lane);
}

// s = h W of one chunk of columns. One slot's products are in flight while the next slot's are issued.
__device__ __forceinline__ void chunk(float (&s)[128], u32 h, Ring& ring, int who, int lane) {
    u32 previous = 0;
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
#if TURN
        if (step % TURN == 0) named_sync(4 + who, 256);
#endif
        barrier_wait(ring.full(), ring.parity);
        const int k0 = step * DEPTH;
        u64 a = describe<128>(h + k0 / 64 * PANEL_BYTES + k0 % 64 * 2), b = describe<2 * DEPTH>(ring.data());
        begin();
#ifdef SKIP_PRODUCTS
        if (!step) multiply(s, a, b, 0);
#else
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) multiply(s, a + 2 * k, b + 2 * k, step + k);  // 16 halves: 32 bytes on
#endif
        commit();
#if TURN
        if (step % TURN == TURN - 1) named_arrive(5 - who, 256);
#endif
        if (step) {
            settle<1>();
            release(previous, lane);
        }
        previous = ring.empty();
        if (step == STEPS - 1) {  // inside the loop, or the compiler puts it off until the sums have been used
            settle<0>();
            release(previous, lane);
        }
        ring.advance();
    }
    settle<0>();
    named_sync(2 + who, 128);  // no warp of the group reads h any more
}

// Sums 8 i .. 8 i + 7 (16 columns, two rows) to activations; `bias` is stored by thread, not by column.
__device__ __forceinline__ void activate(const float* s, const float4* bias, int i, u32* h) {
    float4 b = __ldg(bias + i);
    h[0] = silu_pair(s[0] + b.x, s[1] + b.y);
    h[1] = silu_pair(s[2] + b.x, s[3] + b.y);
    h[2] = silu_pair(s[4] + b.z, s[5] + b.w);
    h[3] = silu_pair(s[6] + b.z, s[7] + b.w);
}

// Four 8 x 8 blocks, 16 rows by 16 columns, to shared memory; each lane names one row of one block.
__device__ __forceinline__ void store_blocks(u32 address, const u32* h) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(h[0]), "r"(h[1]),
                 "r"(h[2]), "r"(h[3])
                 : "memory");
}

// The warpgroup's 64 rows of x, a few numbers to a thread; rows beyond the end repeat the last.
__device__ __forceinline__ void load_rows(float (&ahead)[PIECES], const float* x, int row, int rows, int thread) {
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        int i = min(thread + 128 * p, ROWS * DIM - 1);
        ahead[p] = __ldg(x + (u64)min(row + i / DIM, rows - 1) * DIM + i % DIM);
    }
}

// h = silu(x first + offset): a thread owns 8 columns and 32 of the 64 rows, eight rows at a time.
__device__ __forceinline__ void first_layer(u32 h, const float* x, const float* staged, const float* first,
                                            const float* offset, int row, int rows, int thread) {
    int column = thread % 64 * 8, half = thread / 64 * 32;
    u32 target = h + thread % 64 / 8 * PANEL_BYTES + half * 128;
    row += half;
    staged += half * DIM;
#pragma unroll 1
    for (int block = 0; block < 4; block++, target += 1024, row += 8, staged += 8 * DIM) {
        float y[8][8];
        float4 low = __ldg((const float4*)(offset + column)), high = __ldg((const float4*)(offset + column) + 1);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            y[i][0] = low.x, y[i][1] = low.y, y[i][2] = low.z, y[i][3] = low.w;
            y[i][4] = high.x, y[i][5] = high.y, y[i][6] = high.z, y[i][7] = high.w;
        }
#pragma unroll UNROLL
        for (int k = 0; k < DIM; k++) {
            const float4* weights = (const float4*)(first + k * WIDTH + column);
            float4 l = __ldg(weights), r = __ldg(weights + 1);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float v = STAGED ? staged[i * DIM + k] : __ldg(x + (u64)min(row + i, rows - 1) * DIM + k);
                y[i][0] += v * l.x, y[i][1] += v * l.y, y[i][2] += v * l.z, y[i][3] += v * l.w;
                y[i][4] += v * r.x, y[i][5] += v * r.y, y[i][6] += v * r.z, y[i][7] += v * r.w;
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 place = target + i * 128 + ((thread % 8 ^ i) << 4);
            asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(place), "r"(silu_pair(y[i][0], y[i][1])),
                         "r"(silu_pair(y[i][2], y[i][3])), "r"(silu_pair(y[i][4], y[i][5])),
                         "r"(silu_pair(y[i][6], y[i][7]))
                         : "memory");
        }
    }
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

// x (rows, d); first (P, d, 512); offset (A, 512); weights, biases and last as laid out by `fused.py`, P sets of each;
// out (A, rows, d). P is A where `separate`, else 1. Work comes in units of CLUSTER tiles of one condition.
extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(384, 1)
perceptron(const float* __restrict__ x, const float* __restrict__ first, const float* __restrict__ offset,
           const char* __restrict__ weights, const float* __restrict__ biases, const uint2* __restrict__ last,
           const float* __restrict__ last_bias, float* __restrict__ out, int rows, int conditions, int layers,
           int separate) {
    extern __shared__ __align__(1024) char memory[];
    const u32 base = (u32)__cvta_generic_to_shared(memory);
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    const u32 rank = blockIdx.x % CLUSTER;
    const int stride = gridDim.x / CLUSTER, start = blockIdx.x / CLUSTER;
    const int per_condition = (rows + CLUSTER * TILE - 1) / (CLUSTER * TILE), units = conditions * per_condition;
    const u64 set_bytes = (u64)layers * WIDTH * WIDTH * 2;

    if (threadIdx.x == 0) {
        for (int slot = 0; slot < SLOTS; slot++) {
            barrier_init(base + FULL_AT + 8 * slot, 1);               // the fetching thread, and its bytes
            barrier_init(base + EMPTY_AT + 8 * slot, 8 * CLUSTER);    // every multiplying warp of the cluster
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    cluster_sync();

    if (group == 0) {  // fetch weights
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            Ring ring = {base, 0, 1};  // a fresh ring counts as released
            for (int unit = start; unit < units; unit += stride) {
                const char* source = weights + (separate ? unit / per_condition * set_bytes : 0);
                for (int step = 0; step < layers * CHUNKS * STEPS; step++, source += SLOT_BYTES) {
                    barrier_wait(ring.empty(), ring.parity);
#ifdef SKIP_FETCH
                    barrier_arrive(ring.full(), rank);
#else
                    barrier_expect(ring.full(), SLOT_BYTES);
                    fetch(ring.data(), source, ring.full(), rank);
#endif
                    ring.advance();
                }
            }
        }
        __syncwarp();
    } else {  // multiply
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");  // 40 + 2 x 232 = 3 x 168, what the block starts with
        const int who = group - 1, warp = thread / 32, g = lane / 4, q = lane % 4;
        const u32 h = base + who * H_BYTES;
        // Where this lane's row of four 8 x 8 blocks goes, for each of the four places of 16 columns in a panel.
        const u32 row_at = h + (16 * warp + lane % 16) * 128;
        u32 place[4];
#pragma unroll
        for (int i = 0; i < 4; i++) place[i] = row_at + (((2 * i + lane / 16) ^ (lane % 8)) << 4);
        auto row_of = [=](int unit) { return (unit % per_condition * CLUSTER + (int)rank) * TILE + who * ROWS; };
        Ring ring = {base, 0, 0};
#if TURN
        if (who == 1) named_arrive(4, 256);  // the first turn is the other's
#endif
        float* staged = (float*)(memory + X_AT) + who * ROWS * DIM;
        float ahead[PIECES];
        if (STAGED) load_rows(ahead, x, row_of(start), rows, thread);
        for (int unit = start; unit < units; unit += stride) {
            const int condition = unit / per_condition, set = separate ? condition : 0;
            const int row = row_of(unit);
            if (STAGED) {
#pragma unroll
                for (int p = 0; p < PIECES; p++)
                    if (thread + 128 * p < ROWS * DIM) staged[thread + 128 * p] = ahead[p];
                named_sync(2 + who, 128);
            }
            first_layer(h, x, staged, first + set * DIM * WIDTH, offset + condition * WIDTH, row, rows, thread);
            publish();
            named_sync(2 + who, 128);

            float sums[128], answer[OUT_BLOCKS][4] = {};
            const float4* bias = (const float4*)(biases + (u64)set * layers * WIDTH) + 16 * q;
#pragma unroll 1
            for (int layer = 1; layer < layers; layer++, bias += WIDTH / 4) {
                u32 waiting[64], packed[4];
                chunk(sums, h, ring, who, lane);
#pragma unroll
                for (int i = 0; i < 16; i++) activate(sums + 8 * i, bias, i, waiting + 4 * i);
                chunk(sums, h, ring, who, lane);
#pragma unroll
                for (int i = 0; i < 16; i++) store_blocks(place[i % 4] + i / 4 * PANEL_BYTES, waiting + 4 * i);
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    activate(sums + 8 * i, bias + CHUNK / 4, i, packed);
                    store_blocks(place[i % 4] + (4 + i / 4) * PANEL_BYTES, packed);
                }
                publish();
                named_sync(2 + who, 128);
            }

            if (STAGED)  // a tile ahead, so that its way from memory is hidden
                load_rows(ahead, x, row_of(unit + stride), rows, thread);
            // The last hidden layer goes straight from registers into the output layer.
            const uint2* columns = last + (u64)set * (WIDTH / 16) * OUT_BLOCKS * 32 + lane;
#pragma unroll 1
            for (int part = 0; part < CHUNKS; part++, bias += CHUNK / 4, columns += CHUNK / 16 * OUT_BLOCKS * 32) {
                chunk(sums, h, ring, who, lane);
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    u32 packed[4];
                    activate(sums + 8 * i, bias, i, packed);
#pragma unroll
                    for (int n = 0; n < OUT_BLOCKS; n++)
                        project(answer[n], packed[0], packed[1], packed[2], packed[3],
                                __ldg(columns + (i * OUT_BLOCKS + n) * 32));
                }
            }
#pragma unroll
            for (int v = 0; v < 2; v++) {
                const int here = row + 16 * warp + 8 * v + g;
                float* target = out + ((u64)condition * rows + here) * DIM;
#pragma unroll
                for (int n = 0; n < OUT_BLOCKS; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const int column = 8 * n + 2 * q + e;
                        if (here < rows && column < DIM)
                            target[column] = answer[n][2 * v + e] + __ldg(last_bias + set * DIM + column);
                    }
            }
        }
    }
    cluster_sync();  // a block's shared memory outlives what its neighbour still sends there
}
