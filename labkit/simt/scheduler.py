"""Which threads of an interpreted block can go on: barriers, mbarriers, and what collectives of warps give."""

import functools

import numpy as np

from labkit.simt.errors import short_position
from labkit.simt.interpreted_source import SPIN
from labkit.simt.ir import full_name, sync_kind
from labkit.simt.ptx_interpreted.matrices import ldmatrix as load_matrices
from labkit.simt.ptx_interpreted.matrices import mma
from labkit.simt.stubs import SHUFFLES
from labkit.simt.typed_numbers import Int32


def _mask(bits):
    """A bit for each lane as a kernel has it: int32, as Numba types the votes."""
    return Int32(bits - (1 << 32) if bits >> 31 else bits)


@functools.cache
def _kind(op):
    return SPIN if op == SPIN else sync_kind(op)


MBARRIER_WAITS = ("ptx.mbarrier_wait", "ptx.mbarrier_wait_bounded")
IDLE_ROUNDS = 64  # of one block; twice with the same memory is a deadlock


class Scheduler:
    """Decides which threads of a block can go on, from what each waits for."""

    def __init__(self, execution):
        self.execution, self.epoch = execution, 0
        # True if no thread of the block can go on but those that wait in a loop for a change of memory
        self.only_spins = False
        self.spun, self.idle, self.checkpoint = {}, 0, None  # the last request of each; rounds without a change

    def resolve(self, threads):
        """The threads that can go on, "grid" at a grid barrier, or none; reports threads that can never go on."""
        going = self._ready(threads)
        if not self.only_spins:
            self.idle, self.checkpoint = 0, None
        elif self._is_dead(going):
            self._spin_for_ever(threads)
            return []
        return going

    def _ready(self, threads):
        self.only_spins = False
        while True:
            warps, warpgroups, waits, blocked, spinning = set(), {}, [], [], []
            for thread in threads:
                if thread.done:
                    continue
                kind = _kind(thread.request[0])
                if kind == "warp":
                    warps.add(thread.linear // 32)
                elif kind == "warpgroup":
                    warpgroups.setdefault((thread.linear // 128, *thread.request[:2]), []).append(thread)
                elif kind == "wait":
                    waits.append(thread)
                elif kind == SPIN:
                    spinning.append(thread)
                else:
                    blocked.append(thread)
            going = []
            for w in sorted(warps):
                going += self.resolve_warp(threads[32 * w : 32 * w + 32])
            for group in warpgroups.values():
                if len(group) == 128:
                    self._resolve_warpgroup(group)
                    going += group
            going += self._resolve_waits(waits)
            if going:
                return going + spinning
            if blocked and len({t.request[:2] for t in blocked}) == 1 and self._need_no_other(blocked, threads):
                return self._pass_barrier(blocked)
            if not self.execution.intrinsics.deliver():
                break
        waiting = [t for t in threads if not t.done]
        self.only_spins = bool(spinning)
        if spinning or not waiting:
            return spinning
        if waits:
            self._deadlocked(waiting)
        elif warps:
            self._diverged([t for t in waiting if _kind(t.request[0]) == "warp"], threads, "warp")
        elif warpgroups:
            self._diverged(next(iter(warpgroups.values())), threads, "warpgroup")
        else:
            self._diverged(waiting, threads, "block")
        return []

    # ---------------- threads that wait in a loop for a change of memory

    def _is_dead(self, spinning):
        """True if nothing has changed in so many rounds, of all blocks, that nothing will."""
        now = {t: (t.request[1], *t.request[2]) for t in spinning}
        same = (t in self.spun and self.spun[t][0] == line and self.spun[t][1] < passes and not is_counted
                for t, (line, passes, is_counted) in now.items())  # fmt: skip
        self.idle = self.idle + 1 if all(same) else 0
        if not self.idle:
            self.checkpoint = None
        self.spun.update(now)
        if self.idle < IDLE_ROUNDS * self.execution.blocks_in_flight:
            return False
        previous, self.checkpoint, self.idle = self.checkpoint, self.execution.memory_digest(), 0
        return previous == self.checkpoint

    def _spin_for_ever(self, threads):
        groups = {}
        for t in threads:
            if not t.done:
                does = "spins" if t.request[0] == SPIN else f"waits in {full_name(t.request[0])}()"
                groups.setdefault((t.request[1], does), []).append(t)
        parts = []
        for (line, does), group in groups.items():
            verb, _, details = does.partition(" ")
            verb = verb if len(group) == 1 else verb.removesuffix("s")
            parts.append(f"{_ranges([t.linear for t in group])} {verb} {details}".strip() + f" at line {line}")
        first = next(t for t in threads if not t.done and t.request[0] == SPIN)
        self.execution.stuck(
            "deadlock", first.request[1], first, "loop",
            f"deadlock in {self.execution.block_name(first.block)}: {'; '.join(parts)}. No thread is left that could "
            "change what the loop waits for.", sorted({line for line, _ in groups}), [first],
        )  # fmt: skip

    def _need_no_other(self, blocked, threads):
        """True if these threads can pass their barrier: all are there, or the others have returned and may."""
        if len(blocked) == len(threads):
            return True
        absent = [t for t in threads if t not in blocked]
        op, line, _ = blocked[0].request
        return (all(t.done for t in absent) and op != "grid_sync"
                and self.execution.passes_without(absent[0], line, full_name(op), len(blocked), len(threads)))

    def _pass_barrier(self, threads):
        op, line, _ = threads[0].request
        self.execution.passed_barrier(line)
        if op == "grid_sync":
            return "grid"
        if op != "syncthreads":
            values = [bool(t.request[2][0]) for t in threads]
            result = {"count": sum(values), "and": int(all(values)), "or": int(any(values))}[op.split("_")[1]]
            for t in threads:
                t.reply = result
        self._order(threads)
        return threads

    def _order(self, threads):
        """What these threads did before comes before what they do now."""
        self.epoch += 1
        for t in threads:
            t.epoch = self.epoch

    def _resolve_warpgroup(self, group):
        op = group[0].request[0]
        if op == "ptx.wgmma_wait":
            self.execution.intrinsics.finish_products(group)
        else:
            self.execution.intrinsics.start_product(op[4:], group)

    def _resolve_waits(self, waits):
        """Threads at mbarriers whose phase has ended, and at named barriers that are complete."""
        going, named = [], {}
        for t in waits:
            op, line, args = t.request
            if op == "ptx.named_barrier_sync":
                named.setdefault(int(args[0]), []).append(t)
            elif self.execution.intrinsics.barrier(op.removeprefix("ptx."), *args[:2], line, t).passes(args[2]):
                going.append(t)
        for group_index, group in named.items():
            counts = {int(t.request[2][1]) for t in group}
            first = group[0]
            if len(counts) > 1 or max(counts) % 32 or len(group) > max(counts) or not 0 <= group_index < 16:
                self.execution.fault(
                    "assertion", first.request[1],
                    f"waits at named barrier {group_index} for {' or '.join(map(str, sorted(counts)))} threads, and "
                    f"{len(group)} are there: all must pass the same multiple of 32, and a barrier from 0 to 15",
                    first,
                )  # fmt: skip
            if len(group) == max(counts):
                self._order(group)
                going += group
        passed = [t for t in going if t.request[0] in MBARRIER_WAITS]
        if passed:
            self._order(passed)
        return going

    def resolve_warp(self, warp):
        """Lanes of a warp whose collective is complete go on, with its result."""
        groups = {}
        for t in warp:
            if not t.done and _kind(t.request[0]) == "warp":
                groups.setdefault(t.request[:2], []).append(t)
        going = []
        for (op, _), lanes in groups.items():
            present = {t.linear % 32: t for t in lanes}
            if op.startswith("ptx."):
                if len(lanes) == 32:
                    self._intrinsic(op[4:], lanes)
                    going += lanes
                continue
            if op == "activemask":
                bits = sum(1 << lane for lane in present)
                for t in lanes:
                    t.reply = bits
                going += lanes
                continue
            alive = {t.linear % 32 for t in warp if not t.done}
            for t in lanes:
                mask = (int(t.request[2][0]) if t.request[2] else 0xFFFFFFFF) & 0xFFFFFFFF
                named = {lane for lane in alive if mask >> lane & 1}
                if named <= set(present) and mask >> (t.linear % 32) & 1:
                    t.reply = self._collective(op, t, {lane: present[lane] for lane in named})
                    going.append(t)
        for t in going:
            if t.request[0] == "syncwarp":
                t.warp_epoch += 1
        return going

    def _intrinsic(self, name, lanes):
        """ldmatrix or mma, by the 32 lanes of a warp in order."""
        if name.startswith("mma"):
            results = mma(name, [t.request[2] for t in lanes])
        else:
            count = 4 if "_x4" in name else 2
            rows = np.zeros((8 * count, 8), np.uint16)
            for t, row in zip(lanes, rows, strict=False):
                self.execution.current = t
                (shared, i), line = t.request[2], t.request[1]
                row_values = self.execution.wide("load", name, shared, int(i), 16, 16, line, t.generator.gi_frame)
                if row_values is not None:
                    row[...] = row_values.view(np.uint16)
            results = load_matrices(rows, count, name.endswith("trans"))
        for t, result in zip(lanes, results, strict=True):
            t.reply = result

    def _collective(self, op, thread, lanes):
        lane, args = thread.linear % 32, thread.request[2]
        if op == "syncwarp":
            return None
        if op in SHUFFLES:
            delta = int(args[2])
            source = {
                "shfl_sync": delta & 31,
                "shfl_up_sync": lane - delta,
                "shfl_down_sync": lane + delta,
                "shfl_xor_sync": lane ^ delta,
            }[op]
            if not 0 <= source <= 31:
                return args[1]
            if not int(args[0]) >> source & 1:
                return self.execution.undefined_lane(op, thread, source, args[1])
            if source not in lanes:
                self.execution.stuck(
                    "warp", thread.request[1], thread, op,
                    f"{self.execution.who(thread)} reads lane {source} with cuda.{op}, but that lane does not take "
                    "part: it has returned, or does not exist.", index=source)  # fmt: skip
                return args[1]
            return lanes[source].request[2][1]
        values = {k: t.request[2][1] for k, t in lanes.items()}
        bits = sum(1 << k for k, v in values.items() if v)
        everyone = sum(1 << k for k in values)
        if op == "match_any_sync":
            return _mask(sum(1 << k for k, v in values.items() if v == args[1]))
        if op == "match_all_sync":
            same = all(v == args[1] for v in values.values())
            return (_mask(everyone), True) if same else (_mask(0), False)
        return {
            "all_sync": bits == everyone,
            "any_sync": bits != 0,
            "eq_sync": bits in (0, everyone),
            "ballot_sync": _mask(bits),
        }[op]

    def _diverged(self, waiting, threads, who):
        """Reports a barrier, or a collective of a warp or warpgroup, that its threads can never pass together."""
        first = waiting[0]
        op, line, _ = first.request
        name = "cg.this_grid().sync" if op == "grid_sync" else full_name(op)
        of_block = "" if self.execution.blocks == 1 else f" of {self.execution.block_name(first.block)}"
        if who == "block":
            group = f"threads of {self.execution.block_name(first.block)}"
            rule = "Every thread of the block must reach the same barrier, or none of them."
        else:
            size = 32 if who == "warp" else 128
            group_index = first.linear // size
            threads = [t for t in threads if t.linear // size == group_index]
            group = f"{'lanes' if who == 'warp' else 'threads'} of {who} {group_index}{of_block}"
            rule = "Every lane that the mask names must make the same call."
            if op.startswith("ptx."):
                rule = f"All {size} must make the same call."
        arrived = [t for t in threads if not t.done and t.request[:2] == first.request[:2]]
        others = [t for t in threads if t not in arrived] or arrived
        other = others[0]
        if other.done:
            reason = "has ended without it"
        elif other not in arrived:
            reason = f"waits at line {other.request[1]}"
        else:
            reason = "is not named by its mask"
        lines = sorted({line, *(t.request[1] for t in others if not t.done)})
        who = "warp" if who == "warpgroup" else who
        other_index = short_position(other.where, self.execution.block)
        self.execution.stuck(
            who, line, first, op,
            f"{name}() was reached by {len(arrived)} of the {len(threads)} {group}; "
            f"thread {other_index} {reason}. {rule}", lines, others)  # fmt: skip

    def _deadlocked(self, waiting):
        """No thread can go on, and some wait at mbarriers or named barriers."""
        groups = {}
        for t in waiting:
            op, line, args = t.request
            if op in MBARRIER_WAITS:
                barrier = self.execution.intrinsics.barrier(op.removeprefix("ptx."), *args[:2], line, t)
                wait = f"at line {line} for {barrier.name}, parity {int(args[2])} ({barrier})"
            elif op == "ptx.named_barrier_sync":
                wait = f"at line {line} for {int(args[1])} threads at named barrier {int(args[0])}"
            else:
                wait = f"at line {line} in {full_name(op)}()"
            groups.setdefault((line, wait), []).append(t)
        parts = [
            f"{_ranges([t.linear for t in group])} {'waits' if len(group) == 1 else 'wait'} {wait}"
            for (_, wait), group in groups.items()
        ]
        first = waiting[0]
        lines, block = sorted({line for line, _ in groups}), self.execution.block_name(first.block)
        self.execution.stuck(
            "deadlock", lines[0], first, first.request[0],
            f"deadlock in {block}: no thread can go on. {'; '.join(parts)}.", lines, waiting[:1],
        )  # fmt: skip


def _ranges(thread_ids):
    """Thread numbers in words: thread 5; threads 0 to 127; threads 0 to 31, 64."""
    runs = []
    for n in sorted(thread_ids):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    text = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs[:4]) + (", ..." if len(runs) > 4 else "")
    return f"thread {text}" if len(thread_ids) == 1 else f"threads {text}"
