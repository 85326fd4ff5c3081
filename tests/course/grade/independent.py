"""Right answers to the exercise `gram` (out = a @ a.T, from tiles in shared memory), written independently, and what
copiers make of an answer."""

import ast
import random

ANSWERS = {
    "two tiles and a guard in each load": '''
@cuda.jit
def gram(a, out):
    left = cuda.shared.array((16, 16), float32)
    right = cuda.shared.array((16, 16), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    i = cuda.blockIdx.y * 16 + ty
    j0 = cuda.blockIdx.x * 16
    s = float32(0.0)
    for t in range((a.shape[1] + 15) // 16):
        c = t * 16 + tx
        if i < a.shape[0] and c < a.shape[1]:
            left[ty, tx] = a[i, c]
        else:
            left[ty, tx] = 0.0
        if j0 + ty < a.shape[0] and c < a.shape[1]:
            right[ty, tx] = a[j0 + ty, c]
        else:
            right[ty, tx] = 0.0
        cuda.syncthreads()
        for q in range(16):
            s += left[ty, q] * right[tx, q]
        cuda.syncthreads()
    if i < out.shape[0] and j0 + tx < out.shape[1]:
        out[i, j0 + tx] = s
''',
    "the second tile is kept transposed": '''
@cuda.jit
def gram(a, out):
    M, K = a.shape
    A = cuda.shared.array(shape=(16, 16), dtype=float32)
    B = cuda.shared.array(shape=(16, 17), dtype=float32)
    c, r = cuda.grid(2)
    lc = cuda.threadIdx.x
    lr = cuda.threadIdx.y
    source = c - lc + lr
    acc = float32(0)
    k = 0
    while k < K:
        inside = k + lc < K
        A[lr, lc] = a[r, k + lc] if inside and r < M else float32(0)
        B[lc, lr] = a[source, k + lc] if inside and source < M else float32(0)
        cuda.syncthreads()
        n = min(16, K - k)
        for p in range(n):
            acc = acc + A[lr, p] * B[p, lc]
        cuda.syncthreads()
        k += 16
    if r < M and c < M:
        out[r, c] = acc
''',
    "one array with two halves": '''
@cuda.jit
def gram(a, out):
    buf = cuda.shared.array((2, 16, 16), float32)
    x = cuda.threadIdx.x
    y = cuda.threadIdx.y
    rows = a.shape[0]
    first = cuda.blockIdx.y * cuda.blockDim.y + y
    second = cuda.blockIdx.x * cuda.blockDim.x + y
    result = float32(0.0)
    for begin in range(0, a.shape[1], 16):
        for half in range(2):
            buf[half, y, x] = 0
        if begin + x < a.shape[1]:
            if first < rows:
                buf[0, y, x] = a[first, begin + x]
            if second < rows:
                buf[1, y, x] = a[second, begin + x]
        cuda.syncthreads()
        for depth in range(16):
            result += buf[0, y, depth] * buf[1, x, depth]
        cuda.syncthreads()
    column = cuda.blockIdx.x * cuda.blockDim.x + x
    if column < rows:
        if first < rows:
            out[first, column] = result
''',
    "a device function loads": '''
@cuda.jit(device=True)
def element(a, row, col):
    if row >= a.shape[0]:
        return float32(0.0)
    if col >= a.shape[1]:
        return float32(0.0)
    return a[row, col]


@cuda.jit
def gram(a, out):
    upper = cuda.shared.array((16, 16), float32)
    lower = cuda.shared.array((16, 16), float32)
    u = 16 * cuda.blockIdx.y
    v = 16 * cuda.blockIdx.x
    h, w = cuda.threadIdx.y, cuda.threadIdx.x
    dot = float32(0.0)
    steps = -(-a.shape[1] // 16)
    for step in range(steps):
        upper[h, w] = element(a, u + h, 16 * step + w)
        lower[h, w] = element(a, v + h, 16 * step + w)
        cuda.syncthreads()
        for e in range(16):
            dot += lower[w, e] * upper[h, e]
        cuda.syncthreads()
    if max(u + h, v + w) < a.shape[0]:
        out[u + h, v + w] = dot
''',
    "flat shared memory": '''
@cuda.jit
def gram(a, out):
    rows_tile = cuda.shared.array(256, float32)
    cols_tile = cuda.shared.array(256, float32)
    me = cuda.threadIdx.y * 16 + cuda.threadIdx.x
    width = a.shape[1]
    top = cuda.blockIdx.y * 16 + me // 16
    side = cuda.blockIdx.x * 16 + me // 16
    value = float32(0.0)
    done = 0
    while done < width:
        at = done + me % 16
        rows_tile[me] = 0.0
        cols_tile[me] = 0.0
        if at < width and top < a.shape[0]:
            rows_tile[me] = a[top, at]
        if at < width and side < a.shape[0]:
            cols_tile[me] = a[side, at]
        cuda.syncthreads()
        for z in range(16):
            value += rows_tile[cuda.threadIdx.y * 16 + z] * cols_tile[cuda.threadIdx.x * 16 + z]
        cuda.syncthreads()
        done += 16
    across = cuda.blockIdx.x * 16 + cuda.threadIdx.x
    if top < a.shape[0] and across < a.shape[0]:
        out[top, across] = value
''',
    "the rows that are outside read the last row": '''
@cuda.jit
def gram(a, out):
    p = cuda.shared.array((16, 16), float32)
    q = cuda.shared.array((16, 16), float32)
    ty = cuda.threadIdx.y
    tx = cuda.threadIdx.x
    gx, gy = cuda.grid(2)
    last = a.shape[0] - 1
    mine = min(gy, last)
    other = min(cuda.blockIdx.x * 16 + ty, last)
    total = float32(0.0)
    for k0 in range(0, a.shape[1], 16):
        kk = k0 + tx
        p[ty, tx] = a[mine, min(kk, a.shape[1] - 1)]
        q[ty, tx] = a[other, min(kk, a.shape[1] - 1)] if kk < a.shape[1] else float32(0.0)
        cuda.syncthreads()
        for k in range(16):
            total += p[ty, k] * q[tx, k]
        cuda.syncthreads()
    if gy <= last and gx <= last:
        out[gy, gx] = total
''',
    "partial sums in two registers": '''
@cuda.jit
def gram(a, out):
    na, nb = a.shape
    sa = cuda.shared.array((16, 16), float32)
    sb = cuda.shared.array((16, 16), float32)
    bx = cuda.blockIdx.x
    by = cuda.blockIdx.y
    ix = cuda.threadIdx.x
    iy = cuda.threadIdx.y
    even = float32(0.0)
    odd = float32(0.0)
    for chunk in range(0, nb, 16):
        ok = chunk + ix < nb
        sa[iy, ix] = float32(0.0)
        sb[iy, ix] = float32(0.0)
        if ok and by * 16 + iy < na:
            sa[iy, ix] = a[by * 16 + iy, chunk + ix]
        if ok and bx * 16 + iy < na:
            sb[iy, ix] = a[bx * 16 + iy, chunk + ix]
        cuda.syncthreads()
        for m in range(0, 16, 2):
            even += sa[iy, m] * sb[ix, m]
            odd += sa[iy, m + 1] * sb[ix, m + 1]
        cuda.syncthreads()
    if by * 16 + iy < na and bx * 16 + ix < na:
        out[by * 16 + iy, bx * 16 + ix] = even + odd
''',
    "symmetric: the lower triangle is mirrored": '''
@cuda.jit
def gram(a, out):
    row0, col0 = cuda.blockIdx.y * 16, cuda.blockIdx.x * 16
    if col0 > row0:
        return
    s1 = cuda.shared.array((16, 16), float32)
    s2 = cuda.shared.array((16, 16), float32)
    lane, line = cuda.threadIdx.x, cuda.threadIdx.y
    n, depth = a.shape[0], a.shape[1]
    product = float32(0.0)
    for offset in range(0, depth, 16):
        good = offset + lane < depth
        s1[line, lane] = a[row0 + line, offset + lane] if good and row0 + line < n else float32(0.0)
        s2[line, lane] = a[col0 + line, offset + lane] if good and col0 + line < n else float32(0.0)
        cuda.syncthreads()
        for t in range(16):
            product += s1[line, t] * s2[lane, t]
        cuda.syncthreads()
    if row0 + line < n and col0 + lane < n:
        out[row0 + line, col0 + lane] = product
        if col0 < row0:
            out[col0 + lane, row0 + line] = product
''',
}


# --- What copiers do -----------------------------------------------------------------------------------------------


def _bound(tree) -> set[str]:
    return {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def renamed(source: str, seed: int = 0, answer: str = "gram") -> str:
    """Every variable and helper under another name, constants of a block's width written anew."""
    tree = ast.parse(source)
    names = (_bound(tree) | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}) - {answer}
    words = [f"{a}{b}" for a in "gkmpqtuw" for b in ("_i", "ix", "_one", "val", "2", "_n", "pos", "buf")]
    random.Random(seed).shuffle(words)
    new = dict(zip(sorted(names), words, strict=False))
    for node in ast.walk(tree):
        for key in () if isinstance(node, ast.keyword) else ("id", "arg", "name"):
            if isinstance(getattr(node, key, None), str) and getattr(node, key) in new:
                setattr(node, key, new[getattr(node, key)])
        if isinstance(node, ast.Constant) and node.value in (16, 32, 64, 128, 256):
            node.value *= 2
    return ast.unparse(tree)


def reordered(source: str) -> str:
    """Neighbouring assignments that do not need each other change places; so do functions, and the sides of + and *."""
    tree = ast.parse(source)

    def names(node, kind):
        return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, kind)}

    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
            node.left, node.right = node.right, node.left
        body = getattr(node, "body", None)
        if isinstance(body, list) and not isinstance(node, ast.Module):
            k = 0
            while k + 1 < len(body):
                a, b = body[k], body[k + 1]
                if isinstance(a, ast.Assign) and isinstance(b, ast.Assign) and not (
                        names(a, ast.Store) & names(b, ast.Load) or names(b, ast.Store) & names(a, ast.Load)):
                    body[k], body[k + 1] = b, a
                    k += 1
                k += 1
    tree.body.reverse()
    return ast.unparse(tree)


def with_dead_code(source: str) -> str:
    """Variables that nothing reads, a branch that is never taken and a helper that nothing calls."""
    tree = ast.parse(source)
    first, second, branch = ast.parse(
        "unused = cuda.gridDim.x * 3 + 7\nwaste = unused * unused + cuda.blockDim.x\n"
        "if waste < unused - 100000:\n    waste = waste * 2 - unused\n").body
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    body = functions[-1].body if functions else tree.body
    body[1:1] = [first, second]
    body.insert(3, branch)
    helper = ast.parse("@cuda.jit(device=True)\ndef later(x, y):\n    return x * x + y * y - x * y\n")
    tree.body[:0] = helper.body
    return ast.unparse(tree)


def with_helpers(source: str) -> str:
    """Every value and condition that is computed, in a device function of its own."""
    tree = ast.parse(source)
    made: list[ast.stmt] = []
    for function in [node for node in tree.body if isinstance(node, ast.FunctionDef)]:
        variables = _bound(function)
        for node in list(ast.walk(function)):
            body = getattr(node, "body", None)
            for statement in body if isinstance(body, list) else ():
                for key in ("value", "test"):
                    value = getattr(statement, key, None)
                    if isinstance(value, ast.BinOp | ast.BoolOp | ast.IfExp | ast.Compare):
                        used = sorted({each.id for each in ast.walk(value) if isinstance(each, ast.Name)} & variables)
                        call = f"part_{len(made)}({', '.join(used)})"
                        helper = f"@cuda.jit(device=True)\ndef {call}:\n    return {ast.unparse(value)}\n"
                        made += ast.parse(helper).body
                        setattr(statement, key, ast.parse(call, mode="eval").body)
    tree.body[:0] = made
    return ast.unparse(ast.fix_missing_locations(tree))


COPIERS = {
    "renamed": lambda source, answer="gram": renamed(source, 0, answer),
    "reordered": lambda source, answer="gram": reordered(source),
    "with dead code": lambda source, answer="gram": with_dead_code(source),
    "with helpers": lambda source, answer="gram": with_helpers(source),
    "all of it": lambda source, answer="gram": renamed(reordered(with_dead_code(with_helpers(source))), 7, answer),
}
