# Copyright (c) mmib contributors. All rights reserved.
"""The table of heads: the heads of the models of a library, the losses that
each head calls, and how the losses are wrapped."""
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

import torch.nn as nn

from ...errors import Refusal
from ..batch import BatchContext
from ..losses import InfoBatchLoss, check_loss, is_known

Names = Tuple[str, ...]
# Name of an attribute of a head: its losses.
Wrapped = Dict[str, List[InfoBatchLoss]]


class HeadTable:
    """The models and heads of a library that mmib supports. An entry applies
    to subclasses too that override none of ``methods``.

    Args:
        module (str): Module with the functions ``register_head`` and
            ``register_model``, such as
            ``'mmib.openmmlab.tasks.segmentation'``.
        methods (tuple[str]): Methods that compute losses.
        models (dict[type, tuple[str]]): Models, and heads that consist of
            other heads: the attributes that hold a head, or a ``ModuleList``
            or ``ModuleDict`` of heads.
        heads (dict[type, Any]): The entry of each head: the attributes that
            hold its losses, or in detection the dimension of the images.
        register_model (str): Name of :meth:`register_model` in ``module``.
    """

    def __init__(self, module: str, methods: Names, models: Dict[type, Names],
                 heads: Dict[type, Any], register_model: str) -> None:
        self.models = models
        self.heads = heads
        self._methods = methods
        self._register_head = f'`{module}.register_head`'
        self._register_model = f'`{module}.{register_model}`'
        # The attributes of most models of the library.
        self._default_names = next(iter(models.values()))

    def register_model(self, model_type: type, *heads: str) -> None:
        """Register which heads a model has that overrides ``loss``.

        All of the loss must come from these heads: a term that the model adds
        itself would be trained without weights. Subclasses count too, unless
        they override ``loss`` again.

        Args:
            model_type (type): Class of the model.
            *heads (str): Attributes with a head, or a ``ModuleList`` of heads.
                Defaults to ``decode_head`` and ``auxiliary_head`` for a
                segmentor, ``bbox_head`` for a detector, ``head`` for others.

        Examples:
            >>> register_segmentor(MySegmentor, 'decode_head', 'edge_head')
        """
        self.models[model_type] = heads or self._default_names

    def register_head(self, head_type: type, *losses: str) -> None:
        """Register which losses a head calls.

        The head must call no other losses, and each loss with the predictions
        and labels of the whole batch. Subclasses count too, unless they
        compute their losses in their own way.

        Args:
            head_type (type): Class of the head, or of a model that calls its
                losses itself.
            *losses (str): Attributes with a loss, or a ``ModuleList`` of
                losses. Defaults to ``loss_decode`` for a segmentor,
                ``loss_module`` for others.

        Examples:
            >>> register_head(MyHead, 'loss_decode', 'loss_edge')
        """
        self.heads[head_type] = losses or next(iter(self.heads.values()))

    def find(self, model: nn.Module) -> List[Tuple[str, nn.Module, Any]]:
        """Return the place of each head of a model, the head, and its row.

        Raises:
            Refusal: If the model or a head isn't known.
        """
        found = list(self._find(model, 'model'))
        if not found:
            raise Refusal(
                f'{type(model).__name__} has no head, so there is no loss: '
                'give `model` a head.')
        return found

    def _find(self, module: nn.Module,
              where: str) -> Iterator[Tuple[str, nn.Module, Any]]:
        row = self._known(module, self.heads)
        if row is not None:
            yield where, module, row
            return
        names = self._known(module, self.models)
        if names is None:
            raise self._unknown(module, where)
        for name in names:
            part = getattr(module, name, None)
            if isinstance(part, (nn.ModuleList, nn.ModuleDict)):
                for key, head in part.named_children():
                    yield from self._find(head, f'{where}.{name}.{key}')
            elif part is not None:
                yield from self._find(part, f'{where}.{name}')

    def _known(self, module: nn.Module, rows: Dict[type, Any]) -> Any:
        """Return the row of the nearest class of a module. None if the module
        computes its losses in its own way."""
        kind = next((x for x in type(module).__mro__ if x in rows), None)
        if kind is None or any(
                getattr(type(module), method, None) is not getattr(
                    kind, method, None) for method in self._methods):
            return None
        return rows[kind]

    def _unknown(self, module: nn.Module, where: str) -> Refusal:
        name = type(module).__name__
        if where == 'model' or isinstance(module, tuple(self.models)):
            return Refusal(
                f'{name}, which is `{where}`, computes its losses in its own '
                'way, and mmib does not know whether it adds losses to those '
                'of its heads, which would be trained without weights: if it '
                'adds none, register its heads with '
                f'{self._register_model}, or train without InfoBatchHook.')
        return Refusal(
            f'InfoBatch needs a loss per image, and mmib knows none for {name}'
            f', which computes its losses in its own way: change `{where}`, '
            f'register this head with {self._register_head}, or train without '
            'InfoBatchHook.')

    def wrap(
        self,
        model: nn.Module,
        batch: BatchContext,
        is_only_logged: Callable[[nn.Module, str, nn.Module],
                                 bool] = lambda *args: False
    ) -> List[Tuple[nn.Module, Wrapped]]:
        """Wrap the losses of a model in place. Wrapped losses stay wrapped.

        Args:
            model (nn.Module): A model of the library.
            batch (BatchContext): Weights and scores of the batch in training.
            is_only_logged (Callable): ``is_only_logged(head, name, loss)``
                returns whether the loss in an attribute of a head is logged
                but not trained. Such a loss isn't wrapped. Defaults to never.

        Returns:
            list[tuple[nn.Module, dict]]: Each head, and its wrapped losses.

        Raises:
            Refusal: If mmib doesn't know the model, a head or a loss.
        """
        found, logged = [], set()
        for where, head, names in self.find(model):
            wrapped: Wrapped = {}
            for name in names:
                if not hasattr(head, name):
                    raise Refusal(
                        f'{type(head).__name__} has no loss `{name}`: correct '
                        f'its {self._register_head}.')
                loss = getattr(head, name)
                is_list = isinstance(loss, nn.ModuleList)
                losses = list(loss) if is_list else [loss]
                logged |= {x for x in losses if is_only_logged(head, name, x)}
                try:
                    losses = [
                        x if x in logged else wrap(x, batch) for x in losses
                    ]
                except Refusal as error:
                    raise Refusal(f'`{where}.{name}` of '
                                  f'{type(head).__name__}: {error}') from None
                setattr(head, name,
                        nn.ModuleList(losses) if is_list else losses[0])
                wrapped[name] = [x for x in losses if x not in logged]
            found.append((head, wrapped))
        self._check_all_wrapped(model, logged)
        return found

    def _check_all_wrapped(self, model: nn.Module,
                           logged: Set[nn.Module]) -> None:
        """Check that no loss would be trained without weights."""
        # A module may have several names, of which one is wrapped.
        modules = [*model.named_modules(remove_duplicate=False)]
        inside = tuple(f'{name}.' for name, module in modules
                       if isinstance(module, InfoBatchLoss))
        for name, module in modules:
            is_loss = is_known(module) or hasattr(module, 'loss_name')
            if (is_loss and module not in logged
                    and not isinstance(module, InfoBatchLoss)
                    and not name.startswith(inside)):
                raise Refusal(
                    f'The loss `model.{name}` was not registered, and would be'
                    ' trained without weights: name all heads of '
                    f'{type(model).__name__} with {self._register_model}, and '
                    f'all losses of a head with {self._register_head}, or '
                    'train without InfoBatchHook.')


def wrap(loss: nn.Module, batch: BatchContext) -> InfoBatchLoss:
    """Wrap a loss, which may be wrapped already.

    Raises:
        Refusal: If mmib doesn't know how to split the loss into images.
    """
    if not isinstance(loss, InfoBatchLoss):
        loss = InfoBatchLoss(loss)
    check_loss(loss.loss)
    loss.batch = batch
    return loss
