"""refold's engine as a model of lm-evaluation-harness.

    python -m refold.lm_eval run --model refold --model_args pretrained=small.gguf --tasks piqa,lambada_openai

is the harness's own command, with the model `refold` registered; `--model hf` then takes directories of
refold.transformers.prepare(). In a program, import this module before lm_eval.simple_evaluate(model="refold", ...).
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from tqdm import tqdm

from ._errors import UnsupportedError, UsageError
from ._model import load

Answer = Tuple[float, bool]

# Options of the harness under the names of refold.GenerationOptions.
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "seed": "seed",
}


@register_model("refold")
class RefoldLM(TemplateLM):  # type: ignore[misc]
    """A decoder on refold's engine, asked as the harness asks its model `hf`."""

    def __init__(
        self,
        pretrained: str,
        *,
        batch_size: Union[int, str] = 1,
        max_length: Optional[int] = None,
        max_gen_toks: int = 256,
        threads: int = 0,
        f32: bool = False,
        add_bos_token: Optional[bool] = None,
        max_batch_size: Optional[int] = None,
        device: Optional[str] = None,
    ) -> None:
        """
        Args:
            pretrained: a model, as for refold.load.
            batch_size: prompts that are continued at a time; "auto": 4. Scoring takes one at a time.
            max_length: most tokens of a sequence; None: the model's own, at most 4096.
            max_gen_toks: tokens to generate where a task does not say.
            threads: 0: all cores.
            f32: float32 weights and activations.
            add_bos_token: whether texts begin with BOS; None: as the model asks.
            max_batch_size, device: what the harness passes to all models; refold's engine runs on the CPU.
        """
        super().__init__()
        del max_batch_size, device
        sequences = 4 if str(batch_size).startswith("auto") else int(batch_size)
        self.model = load(
            pretrained,
            context=0 if max_length is None else max_length,
            threads=threads,
            sequences=sequences,
            f32=f32,
        )
        self.max_length = self.model.context if max_length is None else max_length
        self.max_gen_toks = max_gen_toks
        self._add_bos = add_bos_token
        self._bos_text = (
            None if self.model.bos is None else self.model.detokenize([self.model.bos], special=True)
        )

    # ---- tokens ----

    @property
    def eot_token_id(self) -> int:
        if self.model.eos is None:
            raise UnsupportedError(f"[lm_eval] {self.model.path}: the model has no end-of-sequence token")
        return self.model.eos

    @property
    def prefix_token_id(self) -> int:
        """What an empty context becomes: BOS, else EOS."""
        return self.eot_token_id if self.model.bos is None else self.model.bos

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None, **_: Any) -> List[int]:
        if add_special_tokens is None:
            begins = bool(self._bos_text) and string.startswith(str(self._bos_text))
            add_special_tokens = not begins and self._add_bos is not False
        tokens = self.model.tokenize(string, add_special=add_special_tokens)
        bos = self.model.bos
        if add_special_tokens and self._add_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    def tok_decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.model.detokenize(tokens, special=not skip_special_tokens)

    @property
    def tokenizer_name(self) -> str:
        """Names the chat template in the harness's cache."""
        return os.path.basename(self.model.path)

    def apply_chat_template(
        self, chat_history: List[Dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        if not add_generation_prompt:
            raise UnsupportedError("[lm_eval] a chat whose last turn is to be continued is not covered")
        return self.model.apply_chat_template(chat_history)

    # ---- requests ----

    def _loglikelihood_tokens(
        self,
        requests: Sequence[Tuple[Any, List[int], List[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> List[Answer]:
        """(log probability, whether it is the greedy continuation) of each continuation after its context."""
        answers: List[Answer] = []
        known: Dict[Tuple[int, ...], Answer] = {}
        for cache_key, context, continuation in tqdm(
            requests, disable=disable_tqdm, desc="Running loglikelihood requests"
        ):
            if not continuation or len(continuation) > self.max_length:
                raise UsageError(
                    f"[lm_eval] a continuation of {len(continuation)} tokens, expected 1 to {self.max_length}"
                )
            # The end of both that fits: the newest token is only scored.
            tokens = (context + continuation)[-(self.max_length + 1) :]
            key = (len(continuation), *tokens)
            if key not in known:
                known[key] = self._score(tokens, len(continuation))
            answers.append(known[key])
            if cache_key is not None:
                self.cache_hook.add_partial("loglikelihood", cache_key, known[key])
        return answers

    def _score(self, tokens: List[int], count: int) -> Answer:
        """Of the last `count` tokens."""
        if len(tokens) > self.model.context:  # the last one is not run
            logits = self.model.logits(tokens[:-1])[-count:].astype(np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            rows = np.arange(count), np.array(tokens[-count:])
            greedy = bool((logits.argmax(axis=1) == rows[1]).all())
            return float((logits[rows] - np.log(np.exp(logits).sum(axis=1))).sum()), greedy
        scored = self.model.logprobs(tokens, top=1)[-count:]
        greedy = all(token.top[0][0] == token.token for token in scored)
        return sum(token.logprob for token in scored), greedy

    def loglikelihood_rolling(self, requests: List[Instance], disable_tqdm: bool = False) -> List[float]:
        totals: List[float] = []
        for (text,) in tqdm(
            [request.args for request in requests], disable=disable_tqdm, desc="Running rolling requests"
        ):
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            parts = [(None, *utils.make_disjoint_window(window)) for window in windows]
            totals.append(sum(total for total, _ in self._loglikelihood_tokens(parts, disable_tqdm=True)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), totals[-1])
        return totals

    def generate_until(self, requests: List[Instance], disable_tqdm: bool = False) -> List[str]:
        """Texts up to the stop texts, which are left out."""
        groups: Dict[str, List[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(index)
        texts: Dict[int, str] = {}
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests")
        for indices in groups.values():
            given = requests[indices[0]].args[1]
            options = normalize_gen_kwargs(given, self.max_gen_toks)
            stop = [text for text in handle_stop_sequences(options.pop("until"), eos=None) if text]
            count = options.pop("max_gen_toks")
            if not options.pop("do_sample"):
                options = {k: v for k, v in options.items() if k in ("repetition_penalty", "num_beams")}
            if options.pop("num_beams", 1) != 1:
                raise UnsupportedError("[lm_eval] num_beams: beams are not covered")
            for name in options:
                if name not in _SAMPLING:
                    raise UnsupportedError(f"[lm_eval] the generation option '{name}' is not covered")
            room = self.max_length - count
            if room < 1:
                raise UsageError(f"[lm_eval] {count} tokens to generate, the model sees {self.max_length}")
            prompts = [self.tok_encode(requests[index].args[0])[-room:] for index in indices]
            sampling: Any = {_SAMPLING[name]: value for name, value in options.items()}
            for index, found in zip(
                indices, self.model.generate(prompts, max_tokens=count, stop=stop, **sampling)
            ):
                texts[index] = found.text
                self.cache_hook.add_partial("generate_until", requests[index].args, found.text)
                bar.update(1)
        bar.close()
        return [texts[index] for index in range(len(requests))]


def main() -> None:
    """The harness's command `lm-eval`, with refold's models known."""
    from lm_eval.__main__ import cli_evaluate

    try:
        from . import transformers  # noqa: F401  # so that --model hf takes them
    except ImportError:
        pass
    cli_evaluate()


if __name__ == "__main__":
    main()
