"""pytest plugin: run a suite's CUDA tests on the CPU, and fail those whose launches do something wrong.

    pytest -p labkit.simt.pytest --cuda-on-cpu      numba.cuda is the CPU device, in conftest.py and tests
    pytest -p labkit.simt.pytest --cuda-observe     also: every launch is observed, each test has a report

The configuration can have them as well: cuda_on_cpu = true, cuda_observe = true. A test that means to do what
--cuda-observe reports is marked: @pytest.mark.cuda_allow("race"); with no kind, its launches are not observed.
"""

from collections import Counter

import pytest

from labkit.simt import stand_in
from labkit.simt.errors import end_at_launch
from labkit.simt.stand_in import environment

KINDS = ("race", "out_of_bounds", "divergent_barrier", "uninitialized_read")
LIMITS = {"cuda_observe_threads": "most_threads", "cuda_observe_launches": "most_launches"}
OBSERVED = pytest.StashKey()  # of the session: [launches, Counter of those that ran compiled]


def pytest_addoption(parser):
    group = parser.getgroup("cuda", "CUDA on the CPU (labkit.simt)")
    group.addoption("--cuda-on-cpu", action="store_true", help="numba.cuda is the CPU device: no GPU is needed")
    group.addoption("--cuda-observe", action="store_true",
                    help="also observe every launch: a test fails whose launches race, go out of bounds, read what "
                    "nothing wrote, or diverge at a barrier")  # fmt: skip
    group.addoption("--cuda-observe-threads", type=int, metavar="N",
                    help="run launches of more than N threads compiled, without observing them; 8,192 unless given")
    group.addoption("--cuda-observe-launches", type=int, metavar="N",
                    help="observe so many launches of a kernel in each test; 50 unless given")
    parser.addini("cuda_on_cpu", "as --cuda-on-cpu", type="bool", default=False)
    parser.addini("cuda_observe", "as --cuda-observe", type="bool", default=False)


def _observes(config):
    return config.getini("cuda_observe") or getattr(config.known_args_namespace, "cuda_observe", False)


def _is_on(config):
    asked = config.getini("cuda_on_cpu") or getattr(config.known_args_namespace, "cuda_on_cpu", False)
    return asked or _observes(config)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    if _is_on(early_config):
        stand_in.install()
        environment.for_children()  # workers of xdist, and what tests start


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "cuda_allow(*kinds): --cuda-observe does not fail the test for findings of these kinds "
        f"({', '.join(KINDS)}); with none, its launches are not observed",
    )
    config.stash[OBSERVED] = [0, Counter()]


def pytest_report_header(config):
    if _is_on(config):
        return f"cuda: the CPU device of labkit.simt{', launches are observed' if _observes(config) else ''}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    return (yield from _observed(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from _observed(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    return (yield from _observed(item, "teardown"))


def _observed(item, phase):
    """Run a phase of a test; fail it for what its launches did, or add that to the report of one that fails anyway."""
    allowed = {kind for marker in item.iter_markers("cuda_allow") for kind in marker.args or KINDS}
    unknown = allowed - set(KINDS)
    if unknown:
        raise pytest.UsageError(f"cuda_allow has no kind {', '.join(map(repr, unknown))}; kinds: {', '.join(KINDS)}")
    try:
        if not _observes(item.config) or allowed == set(KINDS):
            return (yield)
        from labkit.simt.observer.launches import Watch

        limits = {key: item.config.getoption(name) for name, key in LIMITS.items()}
        watch = Watch(**{key: value for key, value in limits.items() if value is not None})
        failed = True
        try:
            with watch:
                result = yield
            failed = bool(getattr(item, "_excinfo", None))  # where a unittest.TestCase keeps its failure
        finally:
            report = _report(watch, allowed)
            total = item.config.stash[OBSERVED]
            total[0] += sum(watch.launches.values())
            total[1].update(watch.unobserved)
            if report and failed:
                item.add_report_section(phase, "CUDA launches", report)
    except Exception as error:
        end_at_launch(error)
        raise
    if report and not failed:
        pytest.fail(report, pytrace=False)
    return result


def _report(watch, allowed):
    found = [finding for finding in watch.found if finding.kind not in allowed]
    if not found:
        return ""
    head = f"{len(found)} finding{'' if len(found) == 1 else 's'} in the launches of this test"
    return "\n\n".join([head, *map(str, found)])


def pytest_sessionfinish(session):
    config = session.config
    if hasattr(config, "workeroutput"):  # a worker of xdist
        launches, unobserved = config.stash[OBSERVED]
        config.workeroutput["cuda_observed"] = [launches, dict(unobserved)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    launches, unobserved = getattr(node, "workeroutput", {}).get("cuda_observed", (0, {}))
    node.config.stash[OBSERVED][0] += launches
    node.config.stash[OBSERVED][1].update(unobserved)


def pytest_terminal_summary(terminalreporter, config):
    if _observes(config):
        from labkit.simt.observer.launches import summary

        terminalreporter.write_line(f"cuda: {summary(*config.stash[OBSERVED])}")
