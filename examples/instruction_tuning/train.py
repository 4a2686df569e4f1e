# Copyright (c) mmib contributors. All rights reserved.
"""Tune a small Llama on drawn instructions in the Hugging Face Trainer.

    python -m examples.instruction_tuning.train OUTPUT_DIR

Run this in the root of the repository. With --resume the training goes on from
the newest checkpoint of OUTPUT_DIR, and --policy names the controls.
"""
import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import (LlamaConfig, LlamaForCausalLM, Trainer,
                          TrainingArguments)

import mmib
from examples.instruction_tuning.data import (BASE_TASKS, IGNORED, TASKS,
                                              collate, draw, tokenize)
from mmib.integrations.transformers import InfoBatchTrainerMixin
from mmib.pruning import Neyman, RandomPruning, ScoreOnly

POLICIES = dict(infobatch=Neyman(), random=RandomPruning(), plain=ScoreOnly())


class InfoBatchTrainer(InfoBatchTrainerMixin, Trainer):
    pass


def exact_answers(results):
    """Return the share of answers that are right in each token."""
    logits, labels = map(torch.as_tensor,
                         (results.predictions, results.label_ids))
    right = logits[:, :-1].argmax(2) == labels[:, 1:]
    right |= labels[:, 1:] == IGNORED
    return dict(exact=right.all(1).float().mean().item())


def build_model(args):
    """Return a Llama, or the one of `args.lora` with LoRA of all layers."""
    if args.lora:
        model = LlamaForCausalLM.from_pretrained(args.lora)
        return get_peft_model(model,
                              LoraConfig(r=8, target_modules='all-linear'))
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        use_cache=False)
    return LlamaForCausalLM(config)


def parse_args(args=None):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('output_dir')
    parser.add_argument(
        '--copy',
        action='store_true',
        help='only learn to '
        'copy, as a start for LoRA')
    parser.add_argument(
        '--lora',
        metavar='MODEL_DIR',
        help='train LoRA on '
        'the model of this folder')
    parser.add_argument('--policy', choices=POLICIES, default='infobatch')
    parser.add_argument('--epochs', type=int, default=20)
    parser.add_argument('--size', type=int, default=2000, help='conversations')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--resume', action='store_true')
    return parser.parse_args(args)


def main(args):
    torch.manual_seed(args.seed)
    tasks = BASE_TASKS if args.copy else TASKS
    dataset = [*map(tokenize, draw(tasks, args.size, 0, 0.03))]
    session = mmib.Session(
        dataset,
        POLICIES[args.policy],
        epochs=args.epochs,
        stream=True,
        normalize=True,
        seed=args.seed)
    trainer = InfoBatchTrainer(
        build_model(args),
        TrainingArguments(
            args.output_dir,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            warmup_steps=50,
            logging_steps=50,
            save_steps=100,
            eval_strategy='steps',
            eval_steps=200,
            seed=args.seed,
            report_to='none',
            disable_tqdm=True),
        data_collator=collate,
        eval_dataset=[*map(tokenize, draw(tasks, 500, 1, 0.))],
        compute_metrics=exact_answers,
        session=session)
    trainer.train(resume_from_checkpoint=args.resume)
    trainer.save_model()
    print(dict(trainer.evaluate(), v=session.worth.value))
    return trainer


if __name__ == '__main__':
    main(parse_args())
