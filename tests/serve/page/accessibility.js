// Evaluated in the page: texts about what people with little sight or without a mouse would miss, as an array.
(() => {
  const problems = [];
  const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  // Any color of CSS as red, green, blue from 0 to 1, and alpha.
  const color = text => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = text;
    context.fillRect(0, 0, 1, 1);
    return Array.from(context.getImageData(0, 0, 1, 1).data, n => n / 255);
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((n, i) => n * a + below[i] * (1 - a));
  const background = element => {
    const own = color(getComputedStyle(element).backgroundColor);
    const below = element.parentElement ? background(element.parentElement) : [1, 1, 1];
    return over(own, below);
  };
  const luminance = rgb => {
    const [r, g, b] = rgb.map(n => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (light + 0.05) / (dark + 0.05);
  };
  const described = element => `<${element.tagName.toLowerCase()}${element.id && " #" + element.id}${element.className && " ." + element.className}> "${
    element.textContent.trim().slice(0, 30)}"`;
  // 4.5 is WCAG's AA for texts, 3 for the edges of controls.
  const check = (element, text, least, what) => {
    const back = background(element), ratio = contrast(over(color(text), back), back);
    if (ratio < least) problems.push(`${what} of ${described(element)}: ${ratio.toFixed(2)}`);
  };
  const visible = element => element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && !element.closest(".unseen, .skip");
  for (const element of document.body.querySelectorAll("*")) {
    if (!visible(element) || element.closest("svg")) continue;
    const style = getComputedStyle(element);
    const shows = Array.from(element.childNodes).some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()) || element.value;
    if (shows && !element.disabled) check(element, style.color, 4.5, "contrast");
    if (element.matches("input, textarea")) check(element, getComputedStyle(element, "::placeholder").color, 4.5, "contrast of the placeholder");
    if (element.matches("input, textarea, select")) check(element.parentElement, style.borderTopColor, 3, "contrast of the edge");
    if (element.matches("button, input, select, textarea, summary")) {
      const { width, height } = element.getBoundingClientRect();
      if (width < 24 || height < 23.5) problems.push(`size of ${described(element)}: ${width.toFixed(1)} x ${height.toFixed(1)}`);
    }
  }
  const ids = Array.from(document.querySelectorAll("[id]"), element => element.id);
  for (const id of new Set(ids)) if (ids.filter(other => other === id).length > 1) problems.push(`id ${id} is there twice`);
  const levels = Array.from(document.querySelectorAll("h1, h2")).filter(element => !element.closest("[hidden]"));
  if (levels.filter(element => element.tagName === "H1").length !== 1) problems.push("not one h1");
  return problems;
})()
