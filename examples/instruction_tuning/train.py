# Copyright (c) mmib contributors. All rights reserved.
"""Tune a small Llama on drawn instructions in the Hugging Face Trainer.

    python -m examples.instruction_tuning.train OUTPUT_DIR [--lora] [--plain]

Run this in the root of the repository. With --resume the training goes on from
the newest checkpoint of OUTPUT_DIR, and with --plain nothing is pruned.
"""
import argparse

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.utils.rnn import pad_sequence
from transformers import (LlamaConfig, LlamaForCausalLM, Trainer,
                          TrainingArguments)

import mmib
from examples.llama.draw import TASKS, draw
from mmib.integrations.transformers import InfoBatchTrainerMixin
from mmib.pruning import ScoreOnly

# A token is a byte, or one of these.
PAD, ANSWER, END = 256, 257, 258
IGNORED = -100


class InfoBatchTrainer(InfoBatchTrainerMixin, Trainer):
    pass


def tokenize(conversation):
    """Return tokens, of which those of the answer are learned."""
    prompt = [*conversation['instruction'].encode(), ANSWER]
    answer = [*conversation['output'].encode(), END]
    return dict(
        input_ids=torch.tensor(prompt + answer),
        labels=torch.tensor([IGNORED] * len(prompt) + answer))


def collate(conversations):
    """Pad conversations to the longest one."""

    def pad(name, value):
        rows = [each[name] for each in conversations]
        return pad_sequence(rows, batch_first=True, padding_value=value)

    tokens = pad('input_ids', PAD)
    return dict(
        input_ids=tokens,
        attention_mask=(tokens != PAD).long(),
        labels=pad('labels', IGNORED))


def exact_answers(results):
    """Return the share of answers that are right in each token."""
    logits, labels = map(torch.as_tensor,
                         (results.predictions, results.label_ids))
    right = logits[:, :-1].argmax(2) == labels[:, 1:]
    right |= labels[:, 1:] == IGNORED
    return dict(exact=right.all(1).float().mean().item())


def parse_args(args=None):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('output_dir')
    parser.add_argument('--lora', action='store_true', help='train LoRA alone')
    parser.add_argument('--plain', action='store_true', help='prune nothing')
    parser.add_argument('--resume', action='store_true')
    parser.add_argument('--epochs', type=int, default=12)
    parser.add_argument('--size', type=int, default=2000, help='conversations')
    return parser.parse_args(args)


def main(args):
    torch.manual_seed(0)
    dataset = [*map(tokenize, draw(TASKS, args.size, 0, 0.03))]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=259,
            hidden_size=64,
            intermediate_size=176,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=256,
            use_cache=False))
    if args.lora:
        model = get_peft_model(model,
                               LoraConfig(r=8, target_modules='all-linear'))
    session = mmib.Session(
        dataset,
        ScoreOnly() if args.plain else None,
        epochs=args.epochs,
        stream=True,
        normalize=True,
        seed=0)
    trainer = InfoBatchTrainer(
        model,
        TrainingArguments(
            args.output_dir,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            warmup_steps=50,
            logging_steps=50,
            save_steps=100,
            eval_strategy='steps',
            eval_steps=200,
            seed=0,
            report_to='none',
            disable_tqdm=True),
        data_collator=collate,
        eval_dataset=[*map(tokenize, draw(TASKS, 200, 1, 0.))],
        compute_metrics=exact_answers,
        session=session)
    trainer.train(resume_from_checkpoint=args.resume)
    print(trainer.evaluate())
    return trainer


if __name__ == '__main__':
    main(parse_args())
