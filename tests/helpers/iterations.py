# Copyright (c) mmib contributors. All rights reserved.
"""Runs as in :mod:`tests.helpers.runs` that count iterations of MMEngine."""
from mmib.openmmlab.runner.iterations import Iterations
from tests.helpers.runs import DrivenRun, state_of


class DrivenIterations(DrivenRun):
    """A run whose steps are iterations, with :class:`Iterations` as the hook
    has them. By epochs, ``max_steps`` and ``annealing_step`` count epochs."""

    def schedule_of(self, size, max_steps, delta, start, first_pass, by_epoch):
        lookahead, iters = self.lookahead * self.batch_size, None
        if by_epoch:
            iters = self._iters_of(size)
            first_pass, lookahead = None, 0
        self.iterations = Iterations(
            size,
            self.batch_size,
            max_steps,
            delta,
            start,
            iters_per_epoch=iters,
            first_pass=first_pass,
            lookahead=lookahead)
        return self.iterations.schedule

    def more_arguments(self):
        return dict(visited_at=self.iterations.of_visits)

    def _iters_of(self, slots):
        """The length of a data loader with so many slots."""
        if self.step.drop_last:
            return slots // self.batch_size
        return -(-slots // self.batch_size)

    def _begins_epoch(self):
        has_begun, stream = super()._begins_epoch(), self.run.stream
        if has_begun:
            self.iterations.note_epoch(stream, self.num_steps,
                                       self._iters_of(stream.left))
        return has_begun

    @property
    def saved(self):
        """Iterations that were saved."""
        return self.iterations.saved_at(self.run.stream.place)

    def start_afresh(self, iteration, saved=0., epoch=None):
        """Go on without scores after so many iterations, by epochs in an
        epoch."""
        run, self.num_steps = self.run, iteration
        if epoch is None:
            run.start_afresh(iteration * self.batch_size)
        else:
            position = epoch * run.schedule.pass_length
            run.start_afresh(position, saved / (iteration + saved) * position)
        self.iterations.resume(run, iteration, saved)

    def resumed_by(self, other, iteration=None):
        """Another run, just set up, that goes on. A Runner may count more
        iterations than the checkpoint."""
        state = state_of(self.run)
        own = self.iterations.state_dict(self.run.stream.place)
        assert own['iteration'] == self.num_steps
        other.changes = other.run.load_state_dict(
            state, other.iterations.what_changed(own))
        other.num_steps = self.num_steps if iteration is None else iteration
        other.iterations.resume(other.run, other.num_steps, own['saved'])
        return other
