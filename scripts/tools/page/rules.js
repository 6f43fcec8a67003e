// The rules that the page is checked by in the browser; the value is the list of what is wrong.
(() => {
  const wrong = [];
  const isSeen = (node) => node.checkVisibility() && !node.closest('.unseen');
  const name = (node) => node.id || node.className || node.tagName;
  const all = [...document.querySelectorAll('body *')].filter(isSeen);
  const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
  if (new Set(ids).size !== ids.length) wrong.push('an id is there twice');
  if (!document.documentElement.lang || !document.title) wrong.push('no language or title');
  for (const node of document.querySelectorAll('input, select')) {
    if (!(node.labels && node.labels.length) && !node.getAttribute('aria-label')) wrong.push(`no label: ${name(node)}`);
  }
  for (const node of all.filter((one) => one.tagName === 'CANVAS')) {
    if (!node.getAttribute('aria-label')) wrong.push(`no text for ${name(node)}`);
  }
  for (const node of all.filter((one) => one.tagName === 'BUTTON' && !one.textContent.trim())) wrong.push(`no name: ${name(node)}`);
  for (const node of all.filter((one) => ['hidden', 'clip'].includes(getComputedStyle(one).overflowX) && one.tagName !== 'CANVAS')) {
    const isCut = node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1;
    if (isCut) wrong.push(`text is cut: ${name(node)}: ${node.textContent.slice(0, 40)}`);
  }
  for (const node of document.querySelectorAll('#vitals b')) {
    if (node.textContent === '–') wrong.push(`an empty vital: ${node.closest('div').textContent}`);
  }
  const rightOf = (node) => node.getBoundingClientRect().right;
  for (const node of document.querySelectorAll('#plots > :last-child, #vitals > :last-child')) {
    if (isSeen(node) && rightOf(node) < rightOf(node.parentElement) - 2) wrong.push(`room beside the last of ${name(node.parentElement)}`);
  }
  const parse = (color) => (color.match(/[\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((value) => value / 255)
    .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const color = parse(getComputedStyle(one).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  for (const node of all) {
    const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!hasText) continue;
    const style = getComputedStyle(node);
    const size = parseFloat(style.fontSize);
    if (size < 11) wrong.push(`text of ${size} px: ${name(node)}`);
    const [a, b] = [light(parse(style.color)), light(behind(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < (size >= 24 ? 3 : 4.5)) wrong.push(`contrast ${contrast.toFixed(2)}: ${name(node)}`);
  }
  return [...new Set(wrong)];
})();
