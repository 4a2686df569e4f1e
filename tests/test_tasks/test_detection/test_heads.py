# Copyright (c) mmib contributors. All rights reserved.
"""What mmib makes of detectors. Those of the zoo are in
tests/system/test_detection_heads.py."""
import copy

import pytest

from . import COMPILED

pytest.importorskip('mmdet.models', exc_type=ImportError)

import torch  # noqa: E402
from mmdet.models import dense_heads, losses  # noqa: E402
from mmengine.optim import OptimWrapper  # noqa: E402
from torch.nn.functional import binary_cross_entropy_with_logits  # noqa: E402
from torch.testing import assert_close  # noqa: E402

from mmib import tasks  # noqa: E402
from mmib.batch import BatchContext  # noqa: E402
from mmib.tasks import detection  # noqa: E402

from ..contract import check_weights  # noqa: E402
from ..contract import override, take_step, told_to_call  # noqa: E402
from . import small_detector as small  # noqa: E402

MODELS = dict(RetinaNet=small.RETINANET, DETR=small.DETR)


def make_images(number=3):
    """Images with one, three and two boxes."""
    dataset = small.DrawnBoxes(number, (1, 3, 2))
    items = [dataset[i] for i in range(number)]
    return (torch.stack([item['inputs'] for item in items]) / 255,
            [item['data_samples'] for item in items])


def loss_of(model, inputs, samples):
    return model.parse_losses(model.loss(inputs, copy.deepcopy(samples)))[0]


def norm_by_hand(model, inputs, sample):
    """Norm of the gradient of an image alone, of which no loss is divided, at
    what the only head of a model predicts."""

    def undivided(loss, args, kwargs):
        return args, dict(kwargs, avg_factor=1)

    handles = [
        module.register_forward_pre_hook(undivided, with_kwargs=True)
        for module in model.modules()
        if '.models.losses.' in type(module).__module__
    ]
    outs = model._forward(inputs[None], [sample])
    preds = sum(([out] if torch.is_tensor(out) else out for out in outs), [])
    losses = model.bbox_head.loss_by_feat(*outs, [sample.gt_instances],
                                          [sample.metainfo])
    for handle in handles:
        handle.remove()
    grads = torch.autograd.grad(model.parse_losses(losses)[0], preds)
    return torch.cat([grad.flatten() for grad in grads]).norm()


@pytest.mark.parametrize('name', MODELS)
def test_values_are_those_of_the_baseline_and_norms_by_hand(name):
    batch = make_images(2)
    model = small.build(MODELS[name])
    norms = torch.stack([norm_by_hand(model, *image) for image in zip(*batch)])
    assert norms[0] != norms[1]
    known, parts = check_weights(lambda: small.build(MODELS[name]), *batch,
                                 torch.tensor([1., 3.]))
    assert_close(known.norms, norms, rtol=1e-4, atol=1e-6)
    assert_close(known.unweighted_loss, loss_of(model, *batch).detach())
    # The gradient has weights, and not the loss.
    assert not parts.any()


def test_regions_of_each_image():
    """Those that a detector has sampled lie one image after the other."""
    context = BatchContext()
    context.begin(torch.tensor([1., 5., 3.]))
    leaf = torch.rand(5, 4, requires_grad=True)
    pred, = detection._Weigh.apply(context, 0, [3, 0, 2], leaf)
    loss = pred.square().sum() / 2
    context.watch_loss(loss)
    detection._note_divisors(loss)
    loss.backward()
    rows = torch.tensor([1., 1., 1., 3., 3.])[:, None]
    assert_close(leaf.grad, rows * leaf.detach())
    assert_close(
        context.norms,
        torch.stack([2 * x.norm() for x in leaf.detach().split([3, 0, 2])]))


@pytest.mark.parametrize('device', [
    'cpu',
    pytest.param(
        'cuda',
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(
                not COMPILED, reason='needs operations of mmcv')
        ]),
])
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
        context.begin(weights.to(device))
        loss = loss_of(model, inputs[images].to(device),
                       [samples[i].to(device) for i in images])
        optimizer = torch.optim.SGD(model.parameters(), lr=0)
        OptimWrapper(
            optimizer,
            accumulative_counts=num_batches).update_params(1024 * loss)
        for image, norm in zip(images, context.norms.tolist()):
            norms.setdefault(image, []).append(norm)
    for own, *others in norms.values():
        assert others == pytest.approx([own] * len(others), rel=1e-4)
    assert len({round(own, 3) for own, *_ in norms.values()}) == 3


@pytest.mark.parametrize('loss, divisor', [
    (lambda pred: pred.sum(), 1),
    (lambda pred: pred.sum() / 4, 4),
    (lambda pred: (3 * pred.sum() / torch.tensor([4.])).mean(), 4),
    (lambda pred: (pred / 0.5).sum() / 2 / torch.tensor(2.), 4),
    (lambda pred: pred.sum() / 40 + pred.abs().sum() / 4, 4),
    (lambda pred: pred.abs().mean(), 2),
    (lambda pred: binary_cross_entropy_with_logits(pred, pred * 0)[None], 2),
])
def test_what_divides_a_loss(loss, divisor):
    context = BatchContext()
    context.begin(torch.tensor([1., 3.]))
    pred, = detection._Weigh.apply(context, 0, None,
                                   torch.rand(2, 5, requires_grad=True))
    detection._note_divisors(loss(pred).mean())
    assert pred.grad_fn.divisors == [divisor]


def test_weights_are_not_rounded_to_half_precision():
    weights = torch.tensor([1.009, 2.997])
    context = BatchContext()
    context.begin(weights)
    leaf = torch.rand(2, 100).half().requires_grad_()
    pred, unused = detection._Weigh.apply(context, 0, None, leaf, leaf * 2)
    gradient = torch.rand(2, 100).half()
    pred.backward(gradient)
    rounded = gradient * weights[:, None].half()
    assert_close(
        leaf.grad, (gradient * weights[:, None]).half(), rtol=0, atol=0)
    assert (leaf.grad != rounded).any()


def test_without_gradients_nothing_is_noted():
    model, batch = small.build(small.RETINANET), make_images(2)
    context = BatchContext()
    tasks.attach(model, context)
    context.begin(torch.tensor([1., 3.]))
    with torch.no_grad():
        model.loss(*batch)
    assert context.norms is None


def test_attached_again():
    """As after a training: the batch of the last one counts, once."""
    model, batch = small.build(small.RETINANET), make_images(2)
    first, second = BatchContext(), BatchContext()
    for context in (first, second):
        tasks.attach(model, context)
        context.begin(torch.tensor([1., 3.]))
    ours = take_step(model, *batch)
    other = small.build(small.RETINANET)
    tasks.attach(other, first)
    assert_close(ours.parameters, take_step(other, *batch).parameters)


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
    with pytest.raises(ValueError, match='GHMR, `model.bbox_head.loss_bbox`'):
        tasks.attach(model, BatchContext())
    model = small.build(small.RETINANET)
    model.bbox_head.__class__ = dense_heads.RepPointsHead
    with pytest.raises(ValueError, match='none for RepPointsHead'):
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
    model = EncoderDecoder.__new__(EncoderDecoder)
    torch.nn.Module.__init__(model)
    model.decode_head = small.TwoLevels()
    found = [task for task in tasks.tasks_in_use() if task.matches(model)]
    assert type(found[0]).__name__ == 'SegmentationTask'
    assert not detection.TASK.matches(model)
