"""What lessons, README and the course's summaries say in numbers is what the recordings say."""

import copy

import pytest

from labkit import measure
from labkit.measure import claims


def test_prose_says_what_the_recordings_say():
    assert claims.problems() == []


def test_nothing_waits_to_be_recorded():
    """Each of these is stated in prose and in no recording: data/measurements/README.md says how to record it."""
    assert claims.unrecorded() == []


# --- The check itself, on prose of its own ----------------------------------------------------------------------------

LAUNCH = "The launch takes {series.launch_overhead.launcher_us:.1f} us"


def problems(text, **kinds):
    return claims.problems({"00": text}, {"00": kinds})


def test_a_number_that_nothing_covers():
    (found,) = problems("It takes 21.6 us.")
    assert "nothing says where '21.6 us' comes from: ...It takes 21.6 us...." in found
    assert "recorded (with the expression), arithmetic, quoted, hardware or example" in found


@pytest.mark.parametrize("text", [
    "12 us", "40 µs", "1.2 ms", "350 ns", "4,233 GB/s", "49 TFLOP/s", "12 MB", "80%", "90 %", "three microseconds",
    "it is seven times as fast", "ten times slower", "a factor of fifty", "a factor of about four", "twice as long",
    "half the bytes", "half of it", "a third of the time", "doubles the speed", "a sixth slower", "0.96 of its speed",
    "255 registers", "twenty clocks", "forty instructions", "nine tenths of a copy", "300 tokens a second",
])
def test_what_counts_as_a_number(text):
    assert len(problems(f"We saw that {text} and more.")) == 1


@pytest.mark.parametrize("text", [
    "in 256 threads of 8 blocks", "a third way to do it", "half a block", "lesson 06 and Llama 3.2", "ptxas 13.0",
    "`float32(0.0)` and `--factor 0.5`", "three loops", "at 2^28 elements", "once or twice",
])
def test_what_does_not(text):
    assert problems(f"We saw {text} and more.") == []


def test_a_number_from_the_recording():
    us = measure.recorded_series("launch_overhead", gpu="NVIDIA H200")["launcher_us"]
    assert problems(f"The launch takes {us:.1f} us.", recorded=[LAUNCH]) == []
    (found,) = problems("The launch takes 47.0 us.", recorded=[LAUNCH])
    assert f"the prose should say 'The launch takes {us:.1f} us' (recorded)" in found
    assert "and it says 'The launch takes 47.0 us'" in found


def test_words_are_checked_too():
    text = "A launch costs half of it."
    assert problems(text, arithmetic=["costs {words(0.5)} of it"]) == []
    assert "should say 'costs a third of it'" in problems(text, arithmetic=["costs {words(0.33)} of it"])[0]
    assert problems(text, arithmetic=["costs {about('half', 0.53, 0.5)} of it"]) == []
    assert "costs (half: 0.6) of it" in problems(text, arithmetic=["costs {about('half', 0.6, 0.5)} of it"])[0]
    assert "(not half)" in problems(text, arithmetic=["costs {so('half', 1 > 2)} of it"])[0]


def test_an_entry_stands_for_one_place():
    found = problems("12 us here, 12 us there.", example=["12 us"])
    assert found == ["00: '12 us' stands there 2 times; take a longer fragment"]
    assert "nothing like it is there" in problems("Nothing.", example=["12 us"])[0]
    assert problems("Nothing.", heard=["12 us"]) == ["00: 'heard' is no kind of claim"]
    (found,) = claims.problems({}, {"77": {}})
    assert "there is no such text" in found


def test_a_quotation_says_whose_it_is():
    quoted = {"A title": ["it takes 5.5 ms"]}
    assert problems("By the report it takes 5.5 ms.", quoted=quoted) == []
    (found,) = problems("Somewhere it takes 5.5 ms.", quoted=quoted)
    assert "is quoted, and the prose does not say from where" in found
    compiled = ["255 registers"]
    assert problems("In the machine code it has 255 registers.", compiled=compiled) == []
    assert "is compiled, and the prose" in problems("It has 255 registers.", compiled=compiled)[0]


def test_an_expression_that_fails_is_named():
    (found, _) = problems("It takes 12 us.", arithmetic=["It takes {1 / 0:.0f} us"])
    assert "cannot be worked out: ZeroDivisionError" in found


def test_what_is_to_be_recorded_is_listed_and_not_a_problem_yet():
    entry = "It waits for {series.no_such_series.us:.1f} us"
    kinds = {"00": {"to_record": [entry]}}
    assert claims.problems({"00": "It waits for 9.1 us."}, kinds) == []
    (found,) = claims.unrecorded(kinds)
    assert "no recording has 'no_such_series'" in found
    (found,) = claims.problems({"00": "It waits for 9.1 us."}, {"00": {"recorded": [entry]}})
    assert "no recording has" in found


def test_another_recording_names_the_sentences_that_it_contradicts(monkeypatch):
    data = copy.deepcopy(measure.recorded(gpu="NVIDIA H200"))
    data["series"]["vector_add_sizes"]["call_ms"][0] *= 2
    monkeypatch.setattr(claims.measure, "recorded", lambda gpu=None: data)
    (found,) = [problem for problem in claims.problems() if problem.startswith("01_vector_add")]
    assert "about fourteen times that, the trip three times as much again" in found
    assert "it says 'the call from Python about seven times that, the trip six times as much again'" in found


def test_prose_is_the_markdown_alone():
    source = "# %% [markdown]\n# One\n# line, $$9 us$$ [a](8us).\n# ```\n# 7 us\n# ```\n\n# %%\nx = '6 us'\n"
    assert claims.prose_of(source) == "One line, [a]."


def test_numbers_in_words():
    found = [claims.words(value) for value in (0.5, 0.34, 0.74, 2, 7.06, 12.4, 50.5, 97, 0.12)]
    assert found == ["half", "a third", "three quarters", "two", "seven", "twelve", "fifty", "a hundred", "0.12"]
