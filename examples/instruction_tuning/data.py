# Copyright (c) mmib contributors. All rights reserved.
"""Conversations: drawn instructions with their answers, as tokens."""
import random
import string

import torch
from torch.nn.utils.rnn import pad_sequence

# A token is a byte, or one of these.
PAD, ANSWER, END = 256, 257, 258
IGNORED = -100

LETTERS = 'abcdefghij'
CHARACTERS = LETTERS + LETTERS.upper() + string.digits
DAYS = ('Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday',
        'Sunday')


def word(rng, shortest, longest):
    return ''.join(rng.choices(LETTERS, k=rng.randint(shortest, longest)))


def ask_day(rng):
    number, step = rng.randrange(7), rng.randint(1, 3)
    return f'{DAYS[number]} + {step}', DAYS[(number + step) % 7]


def ask_sum(rng):
    first, second = rng.randrange(100), rng.randrange(100)
    return f'{first} + {second}', str(first + second)


def ask_count(rng):
    letters, letter = word(rng, 4, 8), rng.choice(LETTERS)
    return f'count {letter} in {letters}', str(letters.count(letter))


def ask_to(task, answer, shortest, longest):
    """A task on a word."""

    def ask(rng):
        letters = word(rng, shortest, longest)
        return f'{task} {letters}', answer(letters)

    return ask


def ask_any_copy(rng):
    text = rng.choice(DAYS)
    if rng.random() < 0.7:
        text = ''.join(rng.choices(CHARACTERS, k=rng.randint(3, 12)))
    return f'copy {text}', text


# Each with how often it is asked. There are few questions for a day, which are
# learned soon; no network of this size learns to add in a short training.
TASKS = dict(
    day=(ask_day, 4),
    copy=(ask_to('copy', str, 4, 12), 2),
    upper=(ask_to('upper', str.upper, 4, 12), 2),
    sort=(ask_to('sort', lambda letters: ''.join(sorted(letters)), 3, 6), 1),
    reverse=(ask_to('reverse', lambda letters: letters[::-1], 3, 6), 1),
    count=(ask_count, 1),
    sum=(ask_sum, 1))
# What a network learns before it is tuned with LoRA.
BASE_TASKS = dict(copy=(ask_any_copy, 1))


def draw(tasks, size, seed, wrong):
    """Draw conversations. A share of them has the answer to another question
    of the same task, which is wrong."""
    rng = random.Random(seed)
    asks, shares = zip(*tasks.values())
    conversations = []
    for ask in rng.choices(asks, shares, k=size):
        instruction, output = ask(rng)
        if rng.random() < wrong:
            output = ask(rng)[1]
        conversations.append(dict(instruction=instruction, output=output))
    return conversations


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
