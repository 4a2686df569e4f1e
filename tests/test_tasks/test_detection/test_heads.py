# Copyright (c) mmib contributors. All rights reserved.
"""What mmib makes of detectors. Those of the zoo are in
tests/system/test_detection_heads.py."""
import copy
from types import SimpleNamespace

import pytest
import torch
from mmdet.models import dense_heads, losses
from mmengine.optim import OptimWrapper
from torch._dynamo.utils import counters
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from mmib.errors import Refusal
from mmib.openmmlab import tasks
from mmib.openmmlab.batch import BatchContext
from mmib.openmmlab.tasks import detection

from ..contract import check_weights, override, take_step, told_to_call
from . import COMPILED
from . import small_detector as small

pytestmark = pytest.mark.mmdet

MODELS = dict(RetinaNet=small.RETINANET, FCOS=small.FCOS, DETR=small.DETR)


def make_images(number=3):
    """Images with one, three and two boxes."""
    dataset = small.DrawnBoxes(number, (1, 3, 2))
    items = [dataset[i] for i in range(number)]
    return (torch.stack([item['inputs'] for item in items]) / 255,
            [item['data_samples'] for item in items])


def loss_of(model, inputs, samples):
    return model.parse_losses(model.loss(inputs, copy.deepcopy(samples)))[0]


def norms_by_hand(model, inputs, samples):
    """Norms of the gradients at what the only head of a model predicts, where
    the loss with the smallest ``avg_factor`` isn't divided."""
    factors, divisors = [], []

    def divide_less(loss, args, kwargs):
        factors.append(float(kwargs['avg_factor']))
        if divisors:
            kwargs = dict(kwargs, avg_factor=factors[-1] / min(divisors))
        return args, kwargs

    for module in model.bbox_head.modules():
        if '.models.losses.' in type(module).__module__:
            module.register_forward_pre_hook(divide_less, with_kwargs=True)
    loss_of(model, inputs, samples)
    divisors += factors
    outs = model._forward(inputs, copy.deepcopy(samples))
    losses = model.bbox_head.loss_by_feat(*outs,
                                          [x.gt_instances for x in samples],
                                          [x.metainfo for x in samples])
    preds = sum(([x] if torch.is_tensor(x) else list(x) for x in outs), [])
    grads = torch.autograd.grad(model.parse_losses(losses)[0], preds)
    dim = detection.TABLE.find(model)[0][2]
    return torch.cat(
        [grad.movedim(dim, 0).reshape(len(samples), -1) for grad in grads],
        1).norm(dim=1)


@pytest.mark.parametrize('name', MODELS)
def test_values_are_those_of_the_baseline_and_norms_by_hand(name):
    batch = make_images(2)
    norms = norms_by_hand(small.build(MODELS[name]), *batch)
    assert norms[0] != norms[1]
    known, parts = check_weights(lambda: small.build(MODELS[name]), *batch,
                                 torch.tensor([1., 3.]))
    assert_close(known.norms, norms, rtol=1e-4, atol=1e-6)
    # The gradient has weights, and not the loss.
    assert not parts.any()


# How much the norm of an image may change with the batch. A head has one
# divisor. RetinaNet divides all of its losses by it. FCOS divides the boxes by
# the sum of their centerness, and the rest by the number of positive places.
# DETR divides classes by the number of all queries, weighted.
CHANGES = dict(RetinaNet=1e-4, FCOS=0.15, DETR=1e-3)

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not COMPILED, reason='needs operations of mmcv')
]


@pytest.mark.parametrize('device',
                         ['cpu', pytest.param('cuda', marks=NEEDS_GPU)])
@pytest.mark.parametrize('name', MODELS)
def test_norms_do_not_depend_on_the_batch(name, device):
    """Nor on weights, on the scale of a loss in mixed precision, and on how
    many batches a step takes."""
    model = small.build(MODELS[name]).to(device)
    inputs, samples = make_images()
    context = BatchContext()
    tasks.attach(model, context)
    norms = {}
    batches = [0], [1], [2], [0, 1], [2, 0], [1, 2, 0]
    for num_batches, images in enumerate(batches, 1):
        weights = torch.arange(1., 6., 2)[:len(images)]
        context.set_weights(*[weights.to(device)] * 2)
        loss = loss_of(model, inputs[images].to(device),
                       [samples[i].to(device) for i in images])
        wrapper = OptimWrapper(
            torch.optim.SGD(model.parameters(), lr=0),
            accumulative_counts=num_batches)
        wrapper.update_params(1024 * loss)
        for image, norm in zip(images, context.norms.tolist()):
            norms.setdefault(image, []).append(norm)
    for own, *others in norms.values():
        assert others == pytest.approx([own] * len(others), rel=CHANGES[name])
    assert len({round(own, 3) for own, *_ in norms.values()}) == 3


class OneHead(torch.nn.Module):
    """A head of predictions, whose losses a function computes."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.loss = losses.L1Loss()
        self.loss_sum = losses.L1Loss(reduction='sum')

    def loss_by_feat(self, *preds):
        return self.compute(self, *preds)

    def loss_and_target(self, pred, sampling_results):
        return self.compute(self, pred)


def step(compute, *preds, images=0, weights=(1., 3.), **kwargs):
    """The batch after a step of a head, with gradients of float16."""
    head, context = OneHead(compute), BatchContext()
    detection._weigh_predictions(head, context, images)
    context.set_weights(*[torch.tensor(weights)] * 2)
    with NeverRead():
        is_dense = isinstance(images, int)
        call = head.loss_by_feat if is_dense else head.loss_and_target
        loss = call(*preds, **kwargs)
        context.watch_total(loss)
        loss.backward(torch.full_like(loss, 8))
    assert not head.loss._forward_hooks
    return context


class NeverRead(TorchDispatchMode):
    """No number is read, as a GPU would have to be waited for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **kwargs or {})


def by(*factors, unseen=()):
    """What calls the loss with each factor, as its ``avg_factor``."""

    def compute(head, x):
        with torch.no_grad():
            for factor in unseen:
                head.loss(x, 0 * x, avg_factor=factor)
        return sum(head.loss(x, 0 * x, avg_factor=each) for each in factors)

    return compute


@pytest.mark.parametrize(
    'compute, expected',
    [
        (by(4), 1),
        (by(torch.tensor([4])), 1),
        (by(4, torch.tensor(40.)), 1.1),
        (by(torch.tensor(4.), torch.tensor([40.])), 1.1),
        (by(4, unseen=[1]), 1),
        (lambda head, x: head.loss_sum(x, 0 * x), 1),
        # The mean over two rows of five numbers.
        (lambda head, x: head.loss(x, 0 * x), 1 / 5),
        (lambda head, x: head.loss(x, 0 * x, reduction_override='sum'), 1),
        # The head divides, too.
        (lambda head, x: by(1.)(head, x) / 4, 1),
        (lambda head, x: by(2)(head, x) / torch.tensor(3.), 1),
        (lambda head, x: head.loss_sum(x, 0 * x)[None] / 4, 1),
        (lambda head, x: head.loss(x, 0 * x, reduction_override='none').sum() /
         4, 1),
        # No loss is called, so nothing is known.
        (lambda head, x: x.sum() / 4, 1 / 4),
    ])
def test_what_divides_a_loss(compute, expected):
    pred = torch.rand(2, 5, requires_grad=True) + 1
    norms = step(compute, pred).norms
    assert_close(norms, torch.full((2, ), expected * 5**0.5))


def test_regions_of_each_image():
    """Those that a detector has sampled lie one image after the other."""
    leaf = torch.rand(5, 4, requires_grad=True)
    context = step(
        lambda head, x: x.square().sum() / 2,
        leaf,
        images='priors',
        weights=[1., 5., 3.],
        sampling_results=[SimpleNamespace(priors=[0] * n) for n in (3, 0, 2)])
    rows = torch.tensor([1., 1., 1., 3., 3.])[:, None]
    assert_close(leaf.grad, 8 * rows * leaf.detach())
    assert_close(
        context.norms,
        torch.stack([x.norm() for x in leaf.detach().split([3, 0, 2])]))


def test_a_dimension_that_does_not_run_over_the_images():
    with pytest.raises(Refusal, match='dimension 1 should run over them'):
        step(
            lambda head, x: x.sum(),
            torch.rand(2, 5, requires_grad=True),
            images=1)


def test_weights_are_not_rounded_to_half_precision():
    weights = torch.tensor([1.009, 2.997])
    leaf = torch.rand(2, 100).half().requires_grad_()
    gradient = torch.rand(2, 100).half()
    step(
        lambda head, x, unused: (x * gradient).sum(),
        leaf,
        leaf * 2,
        weights=weights.tolist())
    exact = (8 * gradient * weights[:, None]).half()
    assert_close(leaf.grad, exact, rtol=0, atol=0)
    assert (leaf.grad != 8 * gradient * weights[:, None].half()).any()


def test_without_gradients_nothing_is_noted():
    model, batch = small.build(small.RETINANET), make_images(2)
    context = BatchContext()
    tasks.attach(model, context)
    context.set_weights(*[torch.tensor([1., 3.])] * 2)
    with torch.no_grad():
        model.loss(*batch)
    assert context.norms is None


def test_attached_again():
    """As after a training: the batch of the last one counts, once."""
    model, batch = small.build(small.RETINANET), make_images(2)
    first, second = BatchContext(), BatchContext()
    for context in (first, second, second):
        tasks.attach(model, context)
        context.set_weights(*[torch.tensor([1., 3.])] * 2)
    ours = take_step(model, *batch)
    assert first.norms is None
    other = small.build(small.RETINANET)
    tasks.attach(other, first)
    assert_close(ours.parameters, take_step(other, *batch).parameters)
    assert_close(second.norms, first.norms)
    # No hooks are left.
    assert not any(x._forward_hooks for x in model.modules())


def test_a_compiled_model_has_the_same_norms():
    """Nothing is compiled again for other weights."""
    batch, norms, counts = make_images(2), [], []
    for compiled in (False, True):
        model, context = small.build(small.FCOS), BatchContext()
        tasks.attach(model, context)
        if compiled:
            torch._dynamo.reset()
            model.compile(backend='aot_eager')
        for weight in (2., 3., 4.):
            context.set_weights(*[torch.tensor([1., weight])] * 2)
            take_step(model, *batch)
            norms.append(context.norms)
            counts.append(counters['frames']['total'])
    assert_close(norms, norms[:1] * 6, rtol=1e-4, atol=0)
    assert counts[2] < counts[3] <= counts[4] == counts[5]


def test_what_is_not_known_is_refused():
    model = small.build(small.RETINANET)
    override(model.bbox_head, 'loss_by_feat')
    assert told_to_call(model) is detection.register_head
    detection.register_head(type(model.bbox_head))
    override(model)
    assert told_to_call(model) is detection.register_detector
    detection.register_detector(type(model))
    tasks.attach(model, BatchContext())
    model.bbox_head.loss_bbox = losses.GHMR()
    with pytest.raises(Refusal, match='GHMR, `model.bbox_head.loss_bbox`'):
        tasks.attach(model, BatchContext())
    model = small.build(small.RETINANET)
    model.bbox_head.__class__ = dense_heads.RepPointsHead
    with pytest.raises(Refusal, match='none for RepPointsHead'):
        tasks.attach(model, BatchContext())


def test_subclasses_that_only_predict_otherwise_are_known():

    class MyHead(dense_heads.FCOSHead):

        def forward(self, x):
            return super().forward(x)

    names = ('NASFCOSHead', 'RTMDetSepBNHead', 'RetinaSepBNHead',
             'DABDETRHead')
    for kind in (MyHead, *(getattr(dense_heads, name) for name in names)):
        head = kind.__new__(kind)
        (_, found, images), = detection.TABLE.find(head)
        assert found is head and images in (0, -3)


def test_a_segmentor_stays_one():
    """MMDetection may be in use besides."""
    from mmseg.models import EncoderDecoder

    from mmib.openmmlab.tasks import segmentation
    model = EncoderDecoder.__new__(EncoderDecoder)
    torch.nn.Module.__init__(model)
    model.decode_head = small.TwoLevels()
    assert segmentation.TASK.matches(model)
    assert not detection.TASK.matches(model)
