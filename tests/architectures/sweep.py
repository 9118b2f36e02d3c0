"""Cancel at every point at which a cancel can arrive, and see whether only the victim notices.

Three sequences: a *neighbour* that decodes, a *bystander* whose finished prefix lies idle in the cache, a *victim* that
is cancelled at one graph node of one step. Afterwards three logits must be what they are when nothing is cancelled: the
neighbour's next ones, those of a request that continues the bystander's prefix, and those of a request that continues
what the victim left. They must be equal bit for bit, or to an NMSE of 1e-6 if llama.cpp itself gives a sequence other
logits in other company, or if nobody knows whether it does on this processor.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pyllmcancel._native import CancelFlag, Context, Model, Sampler, kernel_features
from pyllmcancel.engine.batch_invariance import kernels_were_compared
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepItem, StepStatus
from tests.support.device import EVERY_NODE, STOPPABLE, load_model

NEIGHBOUR, BYSTANDER, VICTIM = 0, 1, 2
TOLERANCE = 1e-6
CHUNK = 24
GREEDY = SamplingParams(temperature=0.0)
# Every step, of however many tokens, costs -1: the policy then aborts at every node, the last one included, and for any
# survivors, wherever the memory kind lets it choose. Honest costs would spare the end of each step.
ALWAYS_ABORT = {"fixed_cost": -1.0, "cost_per_token": 0.0}

Logits = NDArray[np.float32]
# The step in which the victim is cancelled: a chunk of its prompt, a token beside the neighbour's, the same with drafts
# for both, a token of its own.
Phase = Literal["prefill", "decode", "draft", "decode alone"]
DRAFT = (7, 8, 9)  # which none of the models accepts


def nmse(found: Logits, expected: Logits) -> float:
    """Mean squared error over the expected variance; infinite if anything is not finite."""
    if not np.isfinite(found).all():
        return float("inf")
    difference = (found.astype(np.float64) - expected) ** 2
    return float(difference.sum() / max(float((expected.astype(np.float64) ** 2).sum()), 1e-30))


class FailedStepError(Exception):
    """A step that nothing disturbs did not return ok."""


@dataclass(slots=True)
class Party:
    neighbour: Logits
    bystander: Logits
    victim: Logits


@dataclass(slots=True)
class Report:
    """The outcome of one model.

    `window` is the length of its sliding attention window, 0 for none; `experts` says whether it is a mixture of them.
    `points` counts cancels, `aborted` the ones that stopped a step in the middle, `exact` the ones after which all
    three were bit-equal. `wrong` are the ones after which one was not, or, if llama.cpp computes this model differently
    in other company even when nothing is cancelled (not `batch_invariant`), was off by more than the tolerance.
    """

    model: str
    memory_kind: str
    window: int
    experts: bool
    batch_invariant: bool = True
    points: int = 0
    aborted: int = 0
    exact: int = 0
    wrong: int = 0
    worst: float = 0.0
    findings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Played:
    """One cancel: the logits afterwards, how the step ended, its graph nodes, and what the victim left behind.

    `continued` is what a later request asked for, `n_kept` how much of it was there already.
    """

    logits: Party
    status: StepStatus
    n_nodes: int
    continued: list[int]
    n_kept: int


class Stage:
    """One context, set up anew for every cancel; prompts are computed in chunks of `chunk` tokens.

    With `protected` off, recurrent and hybrid memories are treated like attention, and a prompt shares its step with
    the neighbour: what a server does that does not know the difference. With `cuts` a graph is cut after every node, as
    a device that is not the CPU's has to be, instead of ggml's asking of its own.
    """

    def __init__(self, model: Model, *, protected: bool = True, cuts: bool = False, chunk: int = CHUNK) -> None:
        self._model = model
        self._chunk = chunk
        options = {"checkpoint_interval": chunk if protected else 0, "trust_any_memory": not protected}
        options |= EVERY_NODE if cuts else STOPPABLE
        self._context = Context(model, n_ctx=512, n_seq_max=4, n_batch=64, n_threads=1, **options)
        self._alone = protected and self._context.memory_kind != "attention"
        chance = np.random.default_rng(7)
        # Of about one, one and a bit, and three and a bit chunks.
        sizes = {NEIGHBOUR: chunk - 4, BYSTANDER: chunk + 6, VICTIM: 3 * chunk + 8}
        vocabulary = min(model.n_vocab, 100)
        self._prompts = {seq: chance.integers(1, vocabulary, size).tolist() for seq, size in sizes.items()}

    def _open(self, seq: int, tokens: list[int]) -> CancelFlag:
        flag = CancelFlag()
        self._context.open(seq, tokens, Sampler(self._model, GREEDY), flag)
        return flag

    def _compute(self, seq: int, n_tokens: int) -> None:
        while self._context.n_committed(seq) < n_tokens:
            n_left = min(n_tokens, len(self._context.tokens(seq))) - self._context.n_committed(seq)
            result = self._context.step([(seq, min(self._chunk, n_left))], **ALWAYS_ABORT)
            if result.status is not StepStatus.OK:
                raise FailedStepError(result.status.name.lower())

    def _set_up(self, n_computed: int) -> CancelFlag:
        for seq in (NEIGHBOUR, BYSTANDER, VICTIM):
            self._context.close(seq, keep=False)
        self._open(BYSTANDER, self._prompts[BYSTANDER])
        self._compute(BYSTANDER, len(self._prompts[BYSTANDER]))
        self._context.close(BYSTANDER, keep=True)
        self._open(NEIGHBOUR, self._prompts[NEIGHBOUR])
        self._compute(NEIGHBOUR, len(self._prompts[NEIGHBOUR]))
        flag = self._open(VICTIM, self._prompts[VICTIM])
        self._compute(VICTIM, n_computed)
        return flag

    def _go_on(self, seq: int, tokens: list[int]) -> Logits:
        """Logits after `tokens`, going on from whatever `seq` still holds of them."""
        self._open(seq, tokens)
        self._compute(seq, len(tokens))
        return self._last_logits(seq)

    def _last_logits(self, seq: int) -> Logits:
        return self._context.logits(seq).copy()

    def batch_invariant(self) -> bool:
        """Return whether logits are bit-equal in any company: in the same step, and in the same cache.

        Two samples cannot show that for a processor whose kernels were not compared: there the package promises no
        equal bits, and some model's bits (grok's, with AVX-VNNI) depend on a company that the samples do not have.
        """
        if not kernels_were_compared(kernel_features()):
            return False
        return bool(np.array_equal(*self._neighbour_in_company()) and np.array_equal(*self._victim_in_a_full_cache()))

    def _neighbour_in_company(self) -> list[Logits]:
        logits = []
        for company in (False, True):
            self._set_up(2 * self._chunk)
            items = [(NEIGHBOUR, 1), (VICTIM, self._chunk)] if company and not self._alone else [(NEIGHBOUR, 1)]
            self._context.step(items, **ALWAYS_ABORT)
            company_too = [(VICTIM, 1)] if company else []
            self._context.step([(NEIGHBOUR, 1), *company_too], **ALWAYS_ABORT)
            logits.append(self._last_logits(NEIGHBOUR))
        return logits

    def _victim_in_a_full_cache(self) -> list[Logits]:
        logits = []
        for full in (False, True):
            self._set_up(2 * self._chunk)
            if not full:
                for seq in (NEIGHBOUR, BYSTANDER, VICTIM):
                    self._context.close(seq, keep=False)
                self._open(VICTIM, self._prompts[VICTIM])
            self._compute(VICTIM, len(self._prompts[VICTIM]))
            logits.append(self._last_logits(VICTIM))
        return logits

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Where a cancel is to be tried: where steps are shared, a token alone is computed like one in company."""
        if self._alone:
            return ("prefill", "decode", "decode alone")
        return ("prefill", "decode", "draft") if self._context.memory_kind == "attention" else ("prefill", "decode")

    def play(self, phase: Phase, *, cancel_at: int) -> Played:
        """Set up, cancel the victim at the given node (0: never) of a step, let all go on."""
        flag = self._set_up(2 * self._chunk if phase == "prefill" else len(self._prompts[VICTIM]))
        # Its prompt, in decode also the one token that it has: a request that begins like that and goes on otherwise.
        continued = [*self._context.tokens(VICTIM), 5, 6]
        draft = DRAFT if phase == "draft" else ()
        victims = [StepItem(VICTIM, self._chunk if phase == "prefill" else 1, draft)]
        items = [StepItem(NEIGHBOUR, 1, draft), *victims] if phase == "decode" or not self._alone else victims
        if cancel_at:
            self._context.raise_at(cancel_at, flag)
        result = self._context.step(items, **ALWAYS_ABORT)
        n_kept = self._context.common_prefixes(continued)[VICTIM]
        return Played(self._all_go_on(continued), result.status, result.polls, continued, n_kept)

    def _all_go_on(self, continued: list[int]) -> Party:
        self._context.close(VICTIM, keep=True)
        # The neighbour's token of the disturbed step, again if need be, and one more that looks back at it.
        self._compute(NEIGHBOUR, len(self._prompts[NEIGHBOUR]) + 2)
        neighbour = self._last_logits(NEIGHBOUR)
        bystander = self._go_on(BYSTANDER, [*self._prompts[BYSTANDER], 3, 1, 2])
        return Party(neighbour, bystander, self._go_on(VICTIM, continued))

    def afresh(self, continued: list[int], n_kept: int) -> Logits:
        """Return the logits of a request that continues after `n_kept` tokens, when nothing was ever cancelled.

        In the same chunks, and with the same neighbours in the cache: for a few architectures llama.cpp's logits depend
        on how a prompt is cut, or, in their last bits, on how full the cache is.
        """
        self._set_up(min(n_kept, len(self._prompts[VICTIM])))
        self._compute(VICTIM, n_kept)
        return self._all_go_on(continued).victim


def sweep(path: Path, *, protected: bool = True, cuts: bool = False, stride: int = 1, chunk: int = CHUNK) -> Report:
    """Cancel at every `stride`-th node of a prefill step and of decode steps, with drafts and without.

    The model is small and has F32 weights. With `cuts`, steps are stopped at cuts on the CPU, too, as on a device.
    """
    model = load_model(path, require_vocabulary=False)
    stage = Stage(model, protected=protected, cuts=cuts, chunk=chunk)
    experts = any(key.endswith(".expert_count") and value != "0" for key, value in model.metadata.items())
    report = Report(path.stem, model.memory_kind, model.n_swa, experts, stage.batch_invariant())
    for phase in stage.phases:
        undisturbed = stage.play(phase, cancel_at=0)
        # By how much of its prompt is kept; after a step that was not stopped, that much came of the same steps.
        afresh = {undisturbed.n_kept: undisturbed.logits.victim}
        for node in range(1, undisturbed.n_nodes + 1, stride):
            judge(report, stage, undisturbed.logits, afresh, phase=phase, node=node)
    if "draft" in stage.phases:
        judge_draft(report, stage)
    return report


def judge_draft(report: Report, stage: Stage) -> None:
    """Compare the logits after rejected drafts, and those without drafts."""
    without, drafted = stage.play("decode", cancel_at=0).logits, stage.play("draft", cancel_at=0).logits
    errors = {who: nmse(getattr(drafted, who), getattr(without, who)) for who in Party.__slots__}
    report.worst = max(report.worst, *errors.values())
    if max(errors.values()) > TOLERANCE:
        report.wrong += 1
        report.findings.append(f"rejected drafts: {errors}")


def judge(report: Report, stage: Stage, whole: Party, afresh: dict[int, Logits], *, phase: Phase, node: int) -> None:
    """Cancel at one node, and add to the report what came of it; `afresh` remembers the victim's expected logits."""
    report.points += 1
    where = f"{phase} node {node}"
    try:
        played = stage.play(phase, cancel_at=node)
        if played.n_kept not in afresh:
            afresh[played.n_kept] = stage.afresh(played.continued, played.n_kept)
    except FailedStepError as failure:
        report.aborted += 1
        report.wrong += 1
        report.worst = float("inf")
        report.findings.append(f"{where}: a later step failed ({failure})")
        return
    expected = replace(whole, victim=afresh[played.n_kept])
    errors = {who: nmse(getattr(played.logits, who), getattr(expected, who)) for who in Party.__slots__}
    report.aborted += played.status is StepStatus.ABORTED
    report.exact += all(error == 0.0 for error in errors.values())
    report.worst = max(report.worst, *errors.values())
    # A neighbour's token that is computed again has no draft beside it: other kernels, other last bits.
    tolerance = 0.0 if report.batch_invariant and phase != "draft" else TOLERANCE
    off = {who: error for who, error in errors.items() if error > tolerance}
    if off:
        report.wrong += 1
        report.findings.append(f"{where}: {off}")
