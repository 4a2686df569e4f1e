# Copyright (c) mmib contributors. All rights reserved.
"""Train the cells of ``benchmarks.quality.run`` side by side on one GPU.

    python -m research.lengths.on_gpu DATA_SET --out RESULTS ...

takes its arguments. A small network leaves most of a GPU idle, and Python
takes longer for a step than the GPU. So a step, from the images to the new
weights, is one CUDA graph, and the graphs of several cells run at once, each
in a stream of its own. Images, crops and flips are on the GPU. Plans come from
``mmib.planner``, as with InfoBatchHook. Without a GPU the same steps run one
by one on the CPU.
"""
import math
import time
from collections import deque
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from mmengine.runner import set_random_seed
from mmengine.utils import import_modules_from_strings

import mmib
from benchmarks.quality import run as cells_of
from benchmarks.quality.classification import PackedImages
from benchmarks.quality.run import append_result, make_cells, read_results
from benchmarks.quality.train import EVALUATIONS, environment
from mmib.clock import IterationClock
from mmib.planner import Planner
from mmib.pruning import EpochPlan, Slots
from mmib.sampler import FullPasses
from mmib.visits import Tables, VisitLog

GPU = torch.cuda.is_available()
DEVICE = torch.device('cuda' if GPU else 'cpu')
# Steps of a cell that are handed to the GPU at once, twice.
CHUNK = 32


class Images:
    """The images of a split on the device, padded and channels last."""

    def __init__(self, path, split, padding=0):
        images, self.labels = PackedImages(path, split).tensors
        self.size, self.padding = images.shape[-1], padding
        images = F.pad(images, [padding] * 4).permute(0, 2, 3, 1)
        self.images = images.contiguous().to(DEVICE)
        self.labels = self.labels.to(DEVICE)

    def __len__(self):
        return len(self.images)

    def crop(self, numbers, generator):
        """Images (B,) at random places and flipped, uint8 (B, 3, H, W)."""
        batch, size = len(numbers), self.size
        places = torch.randint(
            2 * self.padding + 1, (2, batch, 1),
            device=DEVICE,
            generator=generator)
        flips = torch.randint(
            2, (batch, 1), device=DEVICE, generator=generator)
        range_ = torch.arange(size, device=DEVICE)
        rows = places[0] + range_
        columns = places[1] + torch.where(flips > 0, size - 1 - range_, range_)
        cropped = self.images[numbers[:, None, None], rows[:, :, None],
                              columns[:, None, :]]
        return cropped.permute(0, 3, 1, 2)


class Stream:
    """The slots that a training sees, and what is learned of them."""

    def __init__(self, size, batch, iters, hooks, seed):
        self.size, self.position, self.step, self.batch = size, 0, 0, batch
        self.queue = EpochPlan.full(np.empty(0, np.int64)).slots()
        self.passes = FullPasses(size, True, seed)
        self.rng = np.random.default_rng(seed)
        self.log, self.tables = VisitLog(), Tables(np.arange(size))
        self.planner = None
        hook = [hook for hook in hooks if hook['type'] == 'InfoBatchHook']
        if hook:
            delta = hook[0]['delta']
            self.planner = Planner(
                mmib.POLICIES.build(hook[0]['policy']),
                IterationClock(size, batch, iters, delta), self.tables,
                self._merge, lambda limit: self.passes.next(size, limit))

    def _merge(self):
        for visits in self.log.merge(0):
            self.tables.add(visits)

    def deal(self):
        """The slots of the next steps, of whole batches."""
        while len(self.queue) < self.batch:
            plan = EpochPlan.full(self.passes.next(
                self.size)) if self.planner is None else self.planner.draw(
                    self.position + len(self.queue), self.step, self.rng)
            self.queue = Slots.join([self.queue, plan.slots()])
        count = len(self.queue) // self.batch * self.batch
        dealt, self.queue = self.queue[:count], self.queue[count:]
        return dealt

    def record(self, slots, scores, norms):
        """Note what was seen of the slots that were dealt last."""
        self.position += len(slots)
        self.step += len(slots) // self.batch
        if self.planner is None:
            return
        self.planner.advance(self.position)
        self.tables.count_visits(slots.indices)
        if not self.planner.current.annealing:
            self.log.record(slots, self.step, scores, norms)
            self.tables.knows_scores = True

    def figures(self):
        if self.planner is None:
            return {}
        v, *interval, _ = self.planner.mean_ratio.mean()
        covered = self.planner.current.covered_until(self.position)
        return dict(virtual_epochs=covered, v=v, v_interval=interval)


class Cell:
    """A training: its network, its graph, and its stream of slots."""

    def __init__(self, cfg, seed, train, test):
        set_random_seed(seed)
        self.train, self.test = train, test
        self.model = MODELS.build(cfg.model)
        self.model.init_weights()
        self.amp = cfg.model.bfloat16
        self.model.to(DEVICE).train()
        self.iters = cfg.train_cfg.max_iters
        self.batch = cfg.train_dataloader.batch_size
        self.slots = Stream(
            len(train), self.batch, self.iters, cfg.get('custom_hooks', []),
            seed)
        optimizer = cfg.optim_wrapper.optimizer
        assert optimizer.type == 'SGD' and optimizer.nesterov
        self.momentum, self.decay = optimizer.momentum, optimizer.weight_decay
        rates = optimizer.lr * schedule(cfg.param_scheduler, self.iters)
        self.rates = torch.tensor(rates, dtype=torch.float32, device=DEVICE)
        # What a step reads and writes.
        room = len(train) + self.batch
        self.indices = torch.zeros(room, dtype=torch.long, device=DEVICE)
        self.weights, self.scores, self.norms = torch.zeros(
            3, room, device=DEVICE)
        # Slots of the plan, and steps of the training.
        self.count = torch.zeros(2, dtype=torch.long, device=DEVICE)
        self.advance = torch.tensor([self.batch, 1], device=DEVICE)
        self.places = torch.arange(self.batch, device=DEVICE)
        self.classes = torch.arange(cfg.model.num_classes, device=DEVICE)
        self.generator = torch.Generator(DEVICE)
        self.generator.manual_seed(seed)
        self.params = [*self.model.parameters()]
        self.buffers = [torch.zeros_like(p) for p in self.params]
        self.evals = []
        self.stream = torch.cuda.Stream() if GPU else None
        if GPU:
            self.capture()

    def step(self):
        """A step of SGD with Nesterov's momentum, as torch.optim.SGD's."""
        places = self.count[0] + self.places
        numbers = self.indices.index_select(0, places)
        weights = self.weights.index_select(0, places)
        images = self.train.crop(numbers, self.generator)
        labels = self.train.labels.index_select(0, numbers)
        logits = self.logits(images)
        losses = F.cross_entropy(logits, labels, reduction='none')
        grads = torch.autograd.grad((losses * weights).mean(), self.params)
        with torch.no_grad():
            # The gradient of the raw loss at the logits.
            is_label = labels[:, None] == self.classes
            errors = logits.softmax(1) - is_label.float()
            self.scores.index_copy_(0, places, losses)
            self.norms.index_copy_(0, places, errors.norm(dim=1))
            rate = self.rates.index_select(0, self.count[1:]).squeeze()
            grads = torch._foreach_add(grads, self.params, alpha=self.decay)
            torch._foreach_mul_(self.buffers, self.momentum)
            torch._foreach_add_(self.buffers, grads)
            torch._foreach_add_(grads, self.buffers, alpha=self.momentum)
            torch._foreach_mul_(grads, rate)
            torch._foreach_sub_(self.params, grads)
            self.count += self.advance

    def logits(self, images):
        model = self.model
        normalize = model.data_preprocessor
        inputs = (images - normalize.mean) / normalize.std
        with torch.autocast(
                DEVICE.type, torch.bfloat16, enabled=self.amp,
                cache_enabled=False):
            features = model.backbone(inputs)[-1]
        return model.head(features.float().mean((2, 3)))

    def capture(self):
        """Record a step, and leave everything as it was."""
        state = [
            *self.params, *self.model.buffers(), *self.buffers, self.count,
            self.scores, self.norms
        ]
        before = [tensor.detach().clone() for tensor in state]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.step()
        with torch.no_grad():
            for tensor, value in zip(state, before):
                tensor.copy_(value)
        torch.cuda.synchronize()

    def run(self):
        """Train. Yields where the GPU has enough to do."""
        due = [
            -(-self.iters * part // EVALUATIONS)
            for part in range(1, EVALUATIONS + 1)
        ]
        done, events = 0, deque()
        while done < self.iters:
            slots = self.slots.deal()
            count = min(len(slots) // self.batch, self.iters - done)
            slots = slots[:count * self.batch]
            self.load(slots)
            while count:
                chunk = min(count, CHUNK, due[len(self.evals)] - done)
                for _ in range(chunk):
                    self.graph.replay() if GPU else self.step()
                done, count = done + chunk, count - chunk
                if done == due[len(self.evals)]:
                    self.evals.append((done, self.evaluate()))
                yield from self.wait(events, 1)
            yield from self.wait(events, 0)
            scores, norms = (
                x[:len(slots)].cpu() for x in (self.scores, self.norms))
            self.slots.record(slots, scores, norms)

    def wait(self, events, number):
        """Until the GPU is through with all chunks but a number."""
        if not GPU:
            return
        if number:
            events.append(self.stream.record_event())
        while len(events) > number:
            while not events[0].query():
                yield
            events.popleft()

    def load(self, slots):
        for ours, array in ((self.indices, slots.indices), (self.weights,
                                                            slots.weights)):
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            if GPU:
                tensor = tensor.pin_memory()
            ours[:len(slots)].copy_(tensor, non_blocking=True)
        self.count[:1].zero_()

    @torch.no_grad()
    def evaluate(self):
        """How many test images the network is right about."""
        self.model.eval()
        test, parts = self.test, range(0, len(self.test), 2000)
        right = sum((self.logits(test.images[i:i + 2000].permute(
            0, 3, 1, 2)).argmax(1) == test.labels[i:i + 2000]).sum()
                    for i in parts)
        self.model.train()
        return right

    def figures(self, metric):
        evals = [{
            'iter': done,
            metric: 100 * int(right) / len(self.test)
        } for done, right in self.evals]
        return dict(
            iters=self.iters,
            batch_size=self.batch,
            num_images=len(self.train),
            metric=metric,
            quality=evals[-1][metric],
            evals=evals,
            **self.slots.figures())


def schedule(schedulers, iters):
    """Factor of the learning rate of each step, float64 (iters,)."""
    rise, fall = schedulers
    assert (rise.type, fall.type) == ('LinearLR', 'CosineAnnealingLR')
    steps = np.arange(iters)
    factors = rise.start_factor + (1 - rise.start_factor) * np.minimum(
        steps / (rise.end - 1), 1)
    after = np.maximum(steps - fall.begin, 0) / fall.T_max
    return factors * (1 + np.cos(math.pi * after)) / 2


def train_all(cells, args, metric):
    """Train cells, several at once, and write a line for each at its end."""
    images, over_steps = {}, 0

    def split(dataset, padding=0):
        key = dataset.data_root, dataset.split, padding
        if key not in images:
            images[key] = Images(*key)
        return images[key]

    todo, running, began = deque(cells), [], time.time()
    said = began
    while todo or running:
        if todo and len(running) < args.jobs:
            key, cfg = todo.popleft()
            import_modules_from_strings(**cfg.custom_imports)
            padding = cfg.model.data_preprocessor.padding
            cell = Cell(cfg, key['seed'],
                        split(cfg.train_dataloader.dataset, padding),
                        split(cfg.val_dataloader.dataset))
            running.append((key, cell, cell.run()))
        for entry in list(running):
            key, cell, steps = entry
            with torch.cuda.stream(cell.stream):
                over = next(steps, 'over') == 'over'
            if over:
                running.remove(entry)
                over_steps += cell.iters
                figures = cell.figures(metric)
                seconds = round(time.time() - began, 1)
                append_result(args.out,
                              dict(key, **environment(['mmseg']), **figures))
                print(
                    f'{seconds} s: {figures["quality"]:.2f} {key}', flush=True)
        now = time.time()
        is_over = now > began + 60 * args.minutes or not (todo or running)
        if is_over or now > said + 10:
            said = now
            steps = over_steps + sum(cell.slots.step for _, cell, _ in running)
            print(
                f'{now - began:.0f} s: {steps} steps, {len(todo)} cells to '
                'begin',
                flush=True)
        if is_over:
            break


def run(args):
    torch.backends.cudnn.benchmark = True
    MMLogger.get_instance('cells', log_level='ERROR')
    metric = cells_of.load_data_set(args.data_set).METRIC
    cells, lines = make_cells(args), read_results(args.out)
    done = [{name: line[name] for name in cells[0][0]} for line in lines]
    missing = [cell for cell in cells if cell[0] not in done]
    print(f'{len(missing)} of {len(cells)} cells to train', flush=True)
    train_all(missing, args, metric)


if __name__ == '__main__':
    with mock.patch.object(cells_of, 'run', run):
        cells_of.main()
