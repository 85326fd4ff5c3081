"""Barriers, collectives of a warp, and intrinsics of whole warps, between two regions."""

from labkit.simt.codegen.types import HALF_MMA, MMA, SHORT_MMA, VOTES, matrices
from labkit.simt.ir import full_name
from labkit.simt.stubs import SHUFFLES


def write_wait(out, plan, wait, mask):
    sync, op, participants = wait.sync, wait.sync.op, mask or "_m0"
    site = out.site(sync.lineno, op, sync.filename)
    if sync.kind in ("block", "grid"):
        if mask:
            first_block = "_first" if plan.program.cooperative else "_b"
            which = "_barrier" if sync.kind == "block" else "_grid_barrier"
            absent_end = "" if sync.kind == "block" else f", {sync in plan.absent_end}"
            out.line(f"{which}({participants}, _m0, _T, _P, _B, {first_block}, _E, {site}{absent_end})")
        out.line(f"# ---- cuda.{op if sync.kind == 'block' else 'cg.this_grid().sync'}(), line {sync.lineno}")
        if op.startswith("syncthreads_") and not plan.program.cooperative:
            out.line(f"_count = _count_set(_v{wait.names[0]}, {participants}, 0, _T)")
        return
    out.line(f"# ---- {full_name(op)}(), line {sync.lineno}")
    if op.startswith("ptx."):
        out.line(f"_lanes({participants}, _active)")
        _write_intrinsic(out, plan, wait, site)
        return
    out.line(f"_warps({participants}, _m0, _active, _alive)")
    if op in VOTES:
        out.line(f"_value_bits(_v{wait.names[1]}, {participants}, _bits)")


def _write_intrinsic(out, plan, wait, site):
    """An intrinsic of whole warps, for all of the block."""
    op, names = wait.sync.op, wait.names
    if op == SHORT_MMA:  # of four registers of A and two of B, those of k 8 to 15 are not read
        (a0, a1, b0), accumulators = names[:3], names[3:]
        names = (a0, a1, a0, a1, b0, b0, *accumulators)
    values = ", ".join(f"_v{name}" for name in names)
    first_block = "_first" if plan.program.cooperative else "_b"
    out.line(f"_ptx_whole_warps(_active, _P, {first_block}, _E, {site})")
    if op in MMA:
        out.line(f"_ptx_mma_f32({MMA[op]}, _active, {values})")
    elif op == HALF_MMA:
        out.line(f"_ptx_mma_f16(_active, {values})")
    else:
        registers = [name for name, _ in plan.kept[wait.result]]
        registers = ", ".join((registers * 2)[:4])
        out.line(f"_ptx_ldmatrix({values}, _active, {registers}, {matrices(wait.sync)}, {op.endswith('_trans')})")


def write_read(out, plan, s):
    sync, op = s.wait.sync, s.wait.sync.op
    if op.startswith("ptx."):
        _read_intrinsic(out, plan, s)
        return
    args = [name and f"_v{name}" for name in s.wait.names]
    values = [f"{stored}[_t]" if stored else argument.value for stored, argument in zip(args, sync.args, strict=False)]
    site = out.site(sync.lineno, op, sync.filename)
    location = f"_E, _t, _b, {site}"
    if op.startswith("syncthreads_"):
        count = "_count"
        if plan.program.cooperative:
            count = f"_count_set({args[0]}, {args[0]}, _k * _P, _T)"
        value = {"count": count, "and": f"{count} == _T", "or": f"{count} > 0"}[op.split("_")[1]]
        if s.target:
            out.line(f"{s.target} = _np.int32({value})", s.lineno)
        return
    if op == "activemask":
        out.line(f"{s.target or '_'} = _active[_t >> 5]", s.lineno)
        return
    member = values[0] if values else "4294967295"
    if op in SHUFFLES and s.target:
        lane, delta = "(_t & 31)", f"_np.int64({values[2]})"
        source = {"shfl_sync": f"{delta} & 31", "shfl_up_sync": f"{lane} - {delta}",
                  "shfl_down_sync": f"{lane} + {delta}", "shfl_xor_sync": f"{lane} ^ {delta}"}[op]  # fmt: skip
        value = f"_shuffle({args[1]}, {member}, {source}, _t, _active, _alive, {location})"
        out.line(f"{s.target} = {value}", s.lineno)
        return
    out.line(f"_lanes_here = _check_mask({member}, _t, _active, _alive, {location})")
    if not s.target:
        return
    bits = "_bits[_t >> 5] & _lanes_here"
    if op == "match_any_sync":
        value = f"_match_any({args[1]}, _t, _lanes_here)"
    elif op == "match_all_sync":
        value = f"_match_all({args[1]}, _t, _lanes_here)"
    else:
        value = {
            "all_sync": f"({bits}) == _lanes_here",
            "any_sync": f"({bits}) != 0",
            "eq_sync": f"({bits}) == 0 or ({bits}) == _lanes_here",
            "ballot_sync": f"_np.int32({bits})",
        }[op]
    out.line(f"{s.target} = {value}", s.lineno)


def _read_intrinsic(out, plan, s):
    op, names = s.wait.sync.op, s.wait.names
    if op in MMA:
        values = [f"_np.float32(_v{name}[_t])" for name in names[-4:]]
    elif op == HALF_MMA:
        values = [f"_np.uint32(_v{name}[_t])" for name in names[-2:]]
    else:
        values = [f"{name}[_t]" for name, _ in plan.kept[s.wait.result]]
    out.line(f"{s.target} = ({', '.join(values)})" if s.target else "pass", s.lineno)
