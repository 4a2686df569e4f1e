"""A Llama of transformers in a training of MMEngine, with LoRA or without."""
import torch.nn.functional as F
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import METRICS, MODELS
from mmengine.runner import load_checkpoint
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from .data import IGNORED, PAD


@MODELS.register_module()
class Llama(BaseModel):
    """Instruction tuning of a Llama.

    Args:
        llama (dict): Arguments of ``LlamaConfig``.
        lora (dict, optional): Arguments of ``LoraConfig``. Then nothing else
            is trained. Defaults to None.
        checkpoint (str, optional): Of a training without LoRA, to begin with.
            Defaults to None.
    """

    # V is told from the gradients there.
    infobatch_predictions = 'llama.lm_head'

    def __init__(self, llama, lora=None, checkpoint=None):
        super().__init__()
        self.llama = LlamaForCausalLM(LlamaConfig(**llama))
        if checkpoint is not None:
            load_checkpoint(self, checkpoint, map_location='cpu', strict=True)
        if lora is not None:
            self.llama = get_peft_model(self.llama, LoraConfig(**lora))
            # peft moves the network into two others.
            self.infobatch_predictions = 'llama.base_model.model.lm_head'

    def forward(self, tokens, labels, mode='tensor'):
        logits = self.llama(
            input_ids=tokens, attention_mask=tokens != PAD).logits
        if mode == 'tensor':
            return logits
        losses = losses_of_tokens(logits, labels)
        # Prompts and padding don't count.
        num_tokens = (labels != IGNORED).sum(1)
        # One loss for each conversation: no mean over the batch.
        losses = losses.sum(1) / num_tokens
        if mode == 'loss':
            return dict(loss=losses)
        # Where each token of an answer is the most likely one, given those
        # before it, they are what would be generated.
        right = (logits[:, :-1].argmax(2) == labels[:, 1:]) | (
            labels[:, 1:] == IGNORED)
        return [
            dict(loss=loss, exact=exact)
            for loss, exact in zip(losses.tolist(),
                                   right.all(1).tolist())
        ]


def losses_of_tokens(logits, labels):
    """Loss of each token, (B, T - 1), 0 where nothing is to be predicted."""
    return F.cross_entropy(
        logits[:, :-1].transpose(1, 2).float(),
        labels[:, 1:],
        ignore_index=IGNORED,
        reduction='none')


@METRICS.register_module()
class Answers(BaseMetric):
    """The share of answers that are right in each token, in percent, and the
    mean loss of the conversations."""

    default_prefix = 'answers'

    def process(self, data_batch, data_samples):
        self.results.extend(data_samples)

    def compute_metrics(self, results):
        return dict(
            exact=100 * sum(each['exact'] for each in results) / len(results),
            loss=sum(each['loss'] for each in results) / len(results))
