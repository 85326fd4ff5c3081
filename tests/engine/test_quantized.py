"""A folder with quantised layers in the engine: each request gets the tokens, and the logprobs to the bit, that it gets
alone."""

import pytest

from labkit.engine import LLM, SamplingParams
from labkit.kernels.linear.quantized import E4M3, INT4
from labkit.models.configs import LlamaConfig
from labkit.models.quantize import Scheme
from labkit.models.quantized_folder import write_folder
from tests.models.test_quantize import folder  # noqa: F401


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("scheme", [Scheme(INT4, 32), Scheme(E4M3)])
def test_requests_together_get_what_each_gets_alone(folder, tmp_path, scheme):  # noqa: F811
    write_folder(folder, tmp_path / "out", LlamaConfig.read(folder / "config.json"), scheme)
    prompts = ["a kernel is a loop", "kludge", "a crock that works, and that nobody understands"]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)
    sizes = {"max_num_seqs": 4, "max_model_len": 64, "num_pages": 20}
    llm = LLM(str(tmp_path / "out"), dtype="bfloat16", **sizes)
    together = llm.generate(prompts, params, use_tqdm=False)
    alone = [llm.generate([prompt], params, use_tqdm=False)[0] for prompt in prompts]

    def seen(request):
        output = request.outputs[0]
        return output.token_ids, [{token: one.logprob for token, one in each.items()} for each in output.logprobs]

    assert [seen(one) for one in together] == [seen(one) for one in alone]
    assert len(together[0].outputs[0].token_ids) == 8
