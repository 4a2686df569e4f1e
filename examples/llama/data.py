"""Conversations of a file in a training of MMEngine."""
import json

import torch
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, FUNCTIONS, TRANSFORMS
from torch.nn.utils.rnn import pad_sequence

# A token is a byte, or one of these.
PAD, ANSWER, END = 256, 257, 258
NUM_TOKENS = 259
# What no loss is computed of, as in transformers.
IGNORED = -100


@DATASETS.register_module()
class Conversations(BaseDataset):
    """Instructions with their answers: a JSON line for each conversation, with
    ``instruction`` and ``output``, as in the data of Alpaca."""

    def load_data_list(self):
        with open(self.ann_file, encoding='utf-8') as file:
            return [json.loads(line) for line in file]


@TRANSFORMS.register_module()
class Tokenize:
    """Make tokens of a conversation. Labels are those of its answer, and of
    its end."""

    def __call__(self, conversation):
        prompt = [*conversation['instruction'].encode(), ANSWER]
        answer = [*conversation['output'].encode(), END]
        return dict(
            tokens=torch.tensor(prompt + answer),
            labels=torch.tensor([IGNORED] * len(prompt) + answer))


@FUNCTIONS.register_module()
def pad_conversations(conversations):
    """Pad to the longest one, on the right: no token sees what comes later, so
    padding changes nothing before it."""

    def pad(name, value):
        return pad_sequence([each[name] for each in conversations],
                            batch_first=True,
                            padding_value=value)

    return dict(tokens=pad('tokens', PAD), labels=pad('labels', IGNORED))
