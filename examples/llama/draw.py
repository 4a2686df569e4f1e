"""Draw instructions with their answers: python draw.py data/llama"""
import argparse
import json
import os
import os.path as osp
import random
import string

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
# Name of the file: conversations, seed of the draw, and share of them that is
# answered wrong.
FILES = dict(
    base=(BASE_TASKS, 2000, 2, 0.),
    train=(TASKS, 2000, 0, 0.03),
    held_out=(TASKS, 500, 1, 0.))


def draw(tasks, size, seed, wrong):
    """Draw conversations, a share of which has a wrong answer: that of another
    question of the same task."""
    rng = random.Random(seed)
    asks, shares = zip(*tasks.values())
    conversations = []
    for ask in rng.choices(asks, shares, k=size):
        instruction, output = ask(rng)
        if rng.random() < wrong:
            output = ask(rng)[1]
        conversations.append(dict(instruction=instruction, output=output))
    return conversations


def write(folder):
    """Draw all files into a folder."""
    os.makedirs(folder, exist_ok=True)
    for name, arguments in FILES.items():
        with open(osp.join(folder, f'{name}.jsonl'), 'w') as file:
            for conversation in draw(*arguments):
                file.write(json.dumps(conversation) + '\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('folder')
    write(parser.parse_args().folder)


if __name__ == '__main__':
    main()
