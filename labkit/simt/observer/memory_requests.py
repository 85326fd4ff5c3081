"""What a kernel costs in memory: requests of warps, sectors, bank conflicts; and divergent branches."""

import bisect
import dis
import sys

SECTOR, LINE, BANKS = 32, 128, 32


class RequestCounter:
    """Combine the accesses of a warp's lanes into requests and count what a GPU would move."""

    def start_requests(self):
        self.requests, self.branches = {}, {}  # by warp, instruction and occurrence
        self.starts = {}  # (code, offset): the index of its instruction

    def _request(self, kind, observed, address, line, frame, width):
        """This thread's part of a request that the lanes of its warp make together."""
        thread = self.current
        site = (line, self._instruction(frame), observed.name, kind)
        count = thread.occurrence[site] = thread.occurrence.get(site, 0) + 1
        key = (thread.warp, site, count)
        self.requests.setdefault(key, (observed.memory.space, kind, line, width, [], observed.name))[4].append(
            (thread.linear, address)
        )

    def _branch(self, test):
        thread, frame = self.current, sys._getframe(1)
        site = ("branch", frame.f_lineno, self._instruction(frame))
        count = thread.occurrence[site] = thread.occurrence.get(site, 0) + 1
        key = (thread.warp, site, count)
        outcome = bool(test)
        self.branches[key] = self.branches.get(key, 0) | (2 if outcome else 1)
        return outcome

    def _instruction(self, frame):
        """The index of a frame's current instruction: f_lasti, less what specialised instructions add to it."""
        location = (id(frame.f_code), frame.f_lasti)
        instruction = self.starts.get(location)
        if instruction is None:
            starts = [i.offset for i in dis.get_instructions(frame.f_code)]
            instruction = self.starts[location] = bisect.bisect_right(starts, frame.f_lasti)
        return instruction

    def _count_requests(self):
        """Sectors, lines and bank conflicts of each warp's requests: the lanes that make one access together."""
        report = self.report
        for (warp, *_), (space, kind, line, itemsize, accesses, name) in self.requests.items():
            addresses = [address for _, address in accesses]
            plural = "stores" if kind == "store" else "loads" if kind == "load" else "atomics"
            report.count(f"{space}_{plural}", line, len(addresses))
            report.count("bytes_stored" if kind == "store" else "bytes_loaded", line, len(addresses) * itemsize, space)
            report.count(f"{space}_requests", line)
            if space == "global":
                first, last = zip(*((a // SECTOR, (a + itemsize - 1) // SECTOR) for a in addresses), strict=True)
                sectors = {*first, *last}
                report.count("sectors", line, len(sectors))
                report.count("lines_128", line, len({s * SECTOR // LINE for s in sectors}))
                report.count("bytes_wanted", line, len(set(addresses)) * itemsize)
            else:
                report.count("bank_conflicts", line, bank_conflicts(accesses, itemsize))
            step = report.arrays[name][2] if name in report.arrays else itemsize
            for linear, address in accesses:
                for part in range(0, itemsize, step):  # a wide access touches several elements
                    report.touch(name, space, kind, warp[0] * self.threads + linear, address + part)
        for (_, (_, line, _), _), outcome in self.branches.items():
            report.count("branches", line)
            if outcome == 3:
                report.count("divergent_branches", line)


def bank_conflicts(accesses, width):
    """How often a shared-memory request of a warp has to be repeated: the most distinct words in one bank, less one.

    accesses: (thread, address) each, of `width` bytes. Accesses of 8 and 16 bytes go in two and four steps by
    themselves, with a half and a quarter of the lanes each.
    """
    steps = max(1, width // 4)
    words = {}
    for thread, address in accesses:
        step = thread % 32 * steps // 32
        for part in range(steps):
            word = address // 4 + part
            words.setdefault((step, word % BANKS), set()).add(word)
    passes = {}
    for (step, _), distinct in words.items():
        passes[step] = max(passes.get(step, 0), len(distinct))
    return sum(passes.values()) - len(passes)
