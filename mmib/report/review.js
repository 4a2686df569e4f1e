'use strict';
// Verdicts on the images of a report, by clicks and by keys. The browser keeps
// them, and they are saved as review.csv. Without this script the page is a
// gallery. Texts of a report are never parsed as HTML: only textContent.
(() => {
  const VERDICTS = ['wrong', 'hard', 'unsure'];
  const gallery = document.getElementById('gallery');
  const bar = document.getElementById('bar');
  const large = document.getElementById('large');
  const find = (root, name) => root.querySelector(`[data-is="${name}"]`);
  const storageKey = `mmib-review-${gallery.dataset.report}`;

  let cards = [...gallery.querySelectorAll('.card')];
  let current = cards[0];
  let layer = 'labels';
  let verdicts = {};
  let kept = true;  // whether the browser keeps them
  const done = [];  // for undo: number of an image, and what it had before

  // Verdicts by number of an image.

  function load() {
    try {
      verdicts = JSON.parse(localStorage.getItem(storageKey)) || {};
    } catch (error) {
      // What this page knows stays.
    }
  }

  function change(number, entry) {
    load();  // another tab may have changed others
    const before = verdicts[number];
    if (entry) verdicts[number] = entry;
    else delete verdicts[number];
    try {
      localStorage.setItem(storageKey, JSON.stringify(verdicts));
      kept = true;
    } catch (error) {
      kept = false;
    }
    return before;
  }

  function judge(verdict) {
    const number = current.dataset.number;
    const date = new Date().toISOString().replace(/\.\d+/, '');
    done.push([number, change(number, verdict && {verdict, date})]);
    show();
  }

  function undo() {
    if (!done.length) return;
    const [number, before] = done.pop();
    change(number, before);
    show();
    go(cards.find(card => card.dataset.number === number));
  }

  const verdictOf = card => (verdicts[card.dataset.number] || {}).verdict;

  // What is seen.

  function press(root, verdict) {
    for (const button of root.querySelectorAll('button[value]')) {
      button.setAttribute('aria-pressed', button.value === verdict);
    }
  }

  function show() {
    for (const card of cards) {
      card.dataset.verdict = verdictOf(card) || '';
      press(card, verdictOf(card));
    }
    press(large, verdictOf(current));
    const judged = cards.filter(verdictOf).length;
    const wrong = cards.filter(card => verdictOf(card) === 'wrong').length;
    find(bar, 'count').textContent =
      `${judged} of ${cards.length} looked at, ${wrong} wrong` +
      (kept ? '' : '. This browser keeps no verdicts: save before you leave');
    find(bar, 'progress').value = judged;
    find(bar, 'undo').disabled = !done.length;
    find(bar, 'save').disabled = !judged;
  }

  function layersOf(card) {
    return [...card.querySelectorAll('image')];
  }

  function drawLarge() {
    const layers = layersOf(current);
    const top = layers.find(each => each.dataset.layer === layer) || layers[0];
    const svg = large.querySelector('svg');
    const title = current.querySelector('.path').textContent;
    if (top) {
      svg.setAttribute('viewBox', top.parentNode.getAttribute('viewBox'));
      svg.setAttribute('aria-label', `${top.dataset.layer} of ${title}`);
    }
    svg.replaceChildren(...[...new Set([layers[0], top])].filter(Boolean).map(
      each => {
        const copy = each.cloneNode();
        copy.removeAttribute('id');
        return copy;
      }));
    find(large, 'title').textContent = title;
    find(large, 'shown').textContent = top ? top.dataset.layer : 'no picture';
    find(large, 'why').textContent =
      [...current.querySelectorAll('.why')].map(e => e.textContent).join('; ');
    press(large, verdictOf(current));
  }

  function openLarge() {
    drawLarge();
    large.showModal();
  }

  function nextLayer() {
    const names = layersOf(current).map(each => each.dataset.layer);
    layer = names[(names.indexOf(layer) + 1) % names.length] || layer;
    drawLarge();
  }

  // Ways between the cards, of which one is current.

  function choose(card) {
    current.tabIndex = -1;
    current = card;
    current.tabIndex = 0;
  }

  function go(card) {
    choose(card);
    if (large.open) drawLarge();
    else current.focus({preventScroll: true});
    current.scrollIntoView({block: 'nearest'});
  }

  function step(by) {
    const place = cards.indexOf(current) + by;
    go(cards[Math.min(Math.max(place, 0), cards.length - 1)]);
  }

  const columns = () => large.open
    ? 1 : new Set(cards.map(card => card.offsetLeft)).size;

  function sort(byPairs) {
    const counts = {};
    for (const {dataset} of cards) {
      counts[dataset.pair] = (counts[dataset.pair] || 0) + 1;
    }
    for (const list of gallery.querySelectorAll('.cards')) {
      // Those without a pair come last, and the most frequent pair first.
      const order = (a, b) => byPairs && (
        !a.dataset.pair - !b.dataset.pair ||
        counts[b.dataset.pair] - counts[a.dataset.pair] ||
        a.dataset.pair.localeCompare(b.dataset.pair)
      ) || a.dataset.place - b.dataset.place;
      list.append(...[...list.children].sort(order));
    }
    cards = [...gallery.querySelectorAll('.card')];
  }

  // The file.

  function cell(value) {
    // A spreadsheet would take these for formulas. The reader of the file
    // takes one apostrophe away.
    const text = String(value).replace(/^[=+\-@'\t\r]/, '\'$&');
    return /[",;\t\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function save() {
    const rows = cards.filter(verdictOf).map(card => {
      const {image, rank, score} = JSON.parse(card.dataset.row);
      const {verdict, date} = verdicts[card.dataset.number];
      return [image, verdict, rank, score, date];
    }).sort((a, b) => a[2] - b[2]);
    rows.unshift(['image', 'verdict', 'rank', 'score', 'date']);
    const text = rows.map(row => row.map(cell).join(',') + '\r\n').join('');
    // A path may be no text in UTF-8. As in Python its bytes are surrogates.
    const parts = text.split(/([\udc80-\udcff])/u).map(
      (part, i) => i % 2 ? Uint8Array.of(part.charCodeAt(0) & 255) : part);
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob(parts, {type: 'text/csv'}));
    link.download = 'review.csv';
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // Events.

  const actions = {
    ArrowRight: () => step(1),
    ArrowLeft: () => step(-1),
    ArrowDown: () => step(columns()),
    ArrowUp: () => step(-columns()),
    Enter: () => large.open ? large.close() : openLarge(),
    l: () => large.open ? nextLayer() : openLarge(),
    u: undo,
  };
  VERDICTS.forEach((verdict, i) => {
    actions[i + 1] = () => {
      judge(verdict);
      step(1);
    };
  });

  document.addEventListener('keydown', event => {
    const withControl = event.ctrlKey || event.metaKey;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const action = withControl ? key === 'z' && undo : actions[key];
    const inUse = event.target.closest('select') ||
      key === 'Enter' && event.target.closest('button, a, summary');
    if (!action || inUse || event.altKey) return;
    if (withControl && event.shiftKey) return;
    if (event.target.closest('.card, dialog')) {
      action();
    } else {
      // Elsewhere a key leads to the card first, so that nothing is judged
      // that isn't seen; and arrows scroll.
      const isOurs = VERDICTS[key - 1] || gallery.contains(event.target);
      if (!isOurs) return;
      go(current);
    }
    event.preventDefault();
  });

  gallery.addEventListener('click', ({target, detail}) => {
    const card = target.closest('.card');
    if (card) choose(card);
    // A button that a key has pressed keeps the focus.
    if (card && detail) card.focus({preventScroll: true});
    const button = target.closest('button');
    const picture = target.closest('.pictures svg');
    const name = button && button.dataset.is;
    if (button && button.value) {
      judge(button.value === verdictOf(current) ? undefined : button.value);
    } else if (picture) {
      layer = picture.querySelector('image').dataset.layer;
      openLarge();
    } else if (name === 'look') openLarge();
    else if (name === 'undo') undo();
    else if (name === 'save') save();
    else if (name === 'layer') nextLayer();
    else if (name === 'before') step(-1);
    else if (name === 'next') step(1);
    else if (name === 'close') large.close();
  });

  large.addEventListener('close', () => go(current));
  find(bar, 'order').addEventListener(
    'change', event => sort(event.target.value === 'pairs'));
  addEventListener('storage', () => {
    load();
    show();
  });

  const controls = document.getElementById('controls').content;
  for (const [i, card] of cards.entries()) {
    card.append(controls.cloneNode(true));
    card.lastElementChild.setAttribute(
      'aria-label', `Verdict on ${card.querySelector('.path').textContent}`);
    card.dataset.place = i;
    card.tabIndex = i ? -1 : 0;
  }
  find(bar, 'order').hidden = !cards.some(card => card.dataset.pair);
  find(bar, 'progress').max = cards.length;
  gallery.classList.add('judged');
  bar.hidden = false;
  load();
  show();
})();
