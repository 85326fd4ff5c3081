"""The fault record, and how compiled code writes it.

The record `err` is an int64 array of RECORD_SIZE: err[ABORT] is set from outside, to 1 to stop the kernel, and to
CHECK_SIGNALS to have Python's handlers of signals run in the kernel's thread before it goes on; err[ASYNC] says
where the queues of cp.async are (ptx_copies.py); err[STRICT] is 1 if every thread must reach a barrier, 0 if a grid's
barrier may be passed where a GPU lets it pass, -1 if a block's barrier does not wait for threads that have returned
either; err[WARNED] is the site + 1 of the first barrier that was passed so, with four values after it; err[ORDER]
is the order of the threads, its index in settings.ORDERS; the rest is written by the first fault. A fault raises Stop,
which the launcher turns into an error that a person can read (faults.py of labkit.simt).
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# The record: the offset of each field. INDEX and SHAPE are the first of four.
ABORT, CODE, SITE, THREAD, BLOCK, COUNT, INDEX, SHAPE, DONE, ASYNC = 0, 1, 2, 3, 4, 5, 6, 10, 14, 15
STRICT, WARNED = 16, 17
ORDER = 22
RECORD_SIZE = 23
CHECK_SIGNALS = 2
MAX_SPINS = 1 << 22  # passes of a loop that waits for another thread: some hundredths of a second
FEW_SPINS = 64  # and of one that gives up after some passes: fewer than those
MAX_RECORDED_AXES = SHAPE - INDEX

CODES = range(1, 14)
(OUT_OF_BOUNDS, BARRIER, WARP_MASK, WARP_SOURCE, WARP_SELF, ASSERTION, ABORTED, WIDE_BOUNDS, MISALIGNED, COPY_SIZE,
 WARP_PART, NO_STEP, RESHAPE) = CODES  # fmt: skip
SPINNING = CODES[-1] + 1  # no error: the launch is interpreted instead

_I64 = ir.IntType(64)


class Stop(Exception):
    """Raised by compiled code after it has written the fault record."""


def field(context, builder, array_type, array, name):
    """Emit: "data", "shape", "strides" or "nitems" of an array that is a value, without a copy of it in memory."""
    return context.data_model_manager[array_type].get(builder, array, name)


def emit_fail(context, builder, err_type, err, code, location, details=()):
    """Emit: write the fault record, raise Stop. `location` is (t, b, site); `details` fill the record from COUNT on.

    A kernel has as many of these as it has loads and stores, so each must be little work for LLVM: a cold function
    writes the record, and a function of the kernel has one exit for all its faults. As far as LLVM can tell the cold
    function may also let the kernel go on. Were each of these a way out of the loop over the threads, LLVM would take
    a time that grows with the square of their number.
    """
    nonzero = {COUNT + k: value for k, value in enumerate(details) if not _is_zero(value)}
    t, b, site = location
    data = field(context, builder, err_type, err, "data")
    function = _recording_function(builder.module, tuple(nonzero))
    stopped = builder.call(function, [data, ir.Constant(_I64, code), site, t, b, *nonzero.values()])
    goes_on = builder.append_basic_block("goes_on")
    builder.cbranch(stopped, _exit(context, builder), goes_on)
    builder.position_at_end(goes_on)


def _is_zero(value):
    return isinstance(value, ir.Constant) and value.constant == 0


def _recording_function(module, slots):
    """The module's function that writes CODE, SITE, THREAD, BLOCK and these slots of the record, the others as 0."""
    name = "_".join(["labkit_simt_fail", *map(str, slots)])
    function = module.globals.get(name)
    if function is None:
        argument_types = [_I64.as_pointer()] + [_I64] * (4 + len(slots))
        function = ir.Function(module, ir.FunctionType(ir.IntType(1), argument_types), name)
        function.linkage = "internal"
        for attribute in ("noinline", "cold", "nounwind", "inaccessiblemem_or_argmemonly"):
            function.attributes.add(attribute)
        inner = ir.IRBuilder(function.append_basic_block())
        values = dict.fromkeys(range(COUNT, SHAPE + MAX_RECORDED_AXES), ir.Constant(_I64, 0))
        values.update(zip((CODE, SITE, THREAD, BLOCK, *slots), function.args[1:], strict=True))
        for slot, value in values.items():
            inner.store(value, inner.gep(function.args[0], [ir.Constant(_I64, slot)]))
        # atomic, so that LLVM does not see what it will be
        written = inner.load_atomic(inner.gep(function.args[0], [ir.Constant(_I64, CODE)]), "monotonic", 8)
        inner.ret(inner.icmp_unsigned("!=", written, ir.Constant(_I64, 0)))
    return function


def _polling_function(context, module):
    """The module's function that runs the handlers of signals where it is asked to, and else stops the kernel; what a
    handler raises stops it too, and is Python's pending exception then."""
    name = "labkit_simt_poll"
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(ir.IntType(1), [_I64.as_pointer()] + [_I64] * 3), name)
        function.linkage = "internal"
        for attribute in ("noinline", "cold", "nounwind", "inaccessiblemem_or_argmemonly"):
            function.attributes.add(attribute)
        inner = ir.IRBuilder(function.append_basic_block())
        data, site, t, b = function.args
        zero = ir.Constant(_I64, 0)
        answer = inner.cmpxchg(data, ir.Constant(_I64, CHECK_SIGNALS), zero, "monotonic", "monotonic")
        with inner.if_then(inner.extract_value(answer, 1)):
            api = context.get_python_api(inner)
            state = api.gil_ensure()
            check = cgutils.get_or_insert_function(module, ir.FunctionType(ir.IntType(32), []), "PyErr_CheckSignals")
            raised = inner.call(check, [])
            api.gil_release(state)
            with inner.if_then(inner.icmp_signed("==", raised, ir.Constant(ir.IntType(32), 0))):
                inner.ret(ir.Constant(ir.IntType(1), 0))
        inner.ret(inner.call(_recording_function(module, ()), [data, ir.Constant(_I64, ABORTED), site, t, b]))
    return function


def _exit(context, builder):
    """The block of this function that raises Stop."""
    function = builder.function
    block = getattr(function, "labkit_simt_exit", None)
    if block is None:
        block = function.labkit_simt_exit = function.append_basic_block("stopped")
        with builder.goto_block(block):
            context.call_conv.return_user_exc(builder, Stop, ())
    return block


def emit_location(context, builder, argument_types, arguments):
    """The last three arguments (t, b, site) as 64-bit integers."""
    pairs = zip(argument_types[-3:], arguments[-3:], strict=True)
    return [context.cast(builder, value, ty, types.int64) for ty, value in pairs]


@intrinsic
def fail(typing_context, code, err, t, b, site, n0, n1, n2):
    """Stop the kernel with this fault code and three numbers."""

    def codegen(context, builder, signature, arguments):
        values = [
            value if ty == err else context.cast(builder, value, ty, types.int64)
            for ty, value in zip(signature.args, arguments, strict=True)
        ]
        code, record, t, b, site, *details = values
        data = field(context, builder, err, record, "data")
        # the code after a return needs a block of its own, reachable as far as the builder can tell
        with builder.if_then(cgutils.true_bit):
            slots = (CODE, SITE, THREAD, BLOCK, COUNT, INDEX, INDEX + 1)
            for slot, value in zip(slots, (code, site, t, b, *details), strict=True):
                builder.store(value, builder.gep(data, [ir.Constant(_I64, slot)]))
            context.call_conv.return_user_exc(builder, Stop, ())
        return context.get_dummy_value()

    return types.void(code, err, t, b, site, n0, n1, n2), codegen


@intrinsic
def poll(typing_context, err, t, b, site):
    """Stop here if the launcher asks for it. In every loop, so that no kernel runs forever."""

    def codegen(context, builder, signature, arguments):
        data = field(context, builder, err, arguments[0], "data")
        flag = builder.load_atomic(data, "monotonic", 8)
        with builder.if_then(builder.icmp_unsigned("!=", flag, ir.Constant(_I64, 0)), likely=False):
            t, b, site = emit_location(context, builder, signature.args, arguments)
            stopped = builder.call(_polling_function(context, builder.module), [data, site, t, b])
            goes_on = builder.append_basic_block("goes_on")
            builder.cbranch(stopped, _exit(context, builder), goes_on)
            builder.position_at_end(goes_on)
        return context.get_dummy_value()

    return types.void(err, t, b, site), codegen


@intrinsic
def spin(typing_context, passes, max_passes, err, t, b, site):
    """One more than `passes`; stops where a loop that waits for another thread has made too many."""

    def codegen(context, builder, signature, arguments):
        operands = (context.cast(builder, arguments[k], signature.args[k], types.int64) for k in range(2))
        count, limit = builder.add(next(operands), ir.Constant(_I64, 1)), next(operands)
        with builder.if_then(builder.icmp_signed(">=", count, limit), likely=False):
            location = emit_location(context, builder, signature.args, arguments)
            emit_fail(context, builder, err, arguments[2], SPINNING, location)
        return count

    return types.int64(passes, max_passes, err, t, b, site), codegen


@intrinsic
def fence(typing_context, scope):
    """A memory fence: a no-op, since one thread of a block runs at a time. `observe` uses it."""
    return types.none(scope), lambda context, builder, signature, arguments: context.get_dummy_value()
