// The front page, made of the README, so that both say the same.

/** @typedef {{ name: string, about: string, page: string }} Front */

/** @param {string} readme @returns {Front} */
export function frontPage(readme) {
  const [, name = "", about = ""] = /^# ([^\n]*)\n\n(.*?)\n\n/s.exec(readme) ?? [];
  const [, sample = ""] = /^(```js\n.*?^```)/ms.exec(readme) ?? [];
  const [, alt = "", picture = ""] = /^!\[(.*?)\]\(docs\/(.*?)\)$/m.exec(readme) ?? [];
  const [, why = ""] = /^## Why this one\n(.*?)^## /ms.exec(readme) ?? [];
  const features = [...why.matchAll(/^- \*\*(.*?)\.\*\* (.*)$/gm)].map(([, title = "", details = ""]) => ({
    title,
    details: plain(details),
  }));
  if (!about || !sample || !picture || features.length === 0)
    throw new Error("the README's opening, picture, first sample or reasons are not found");
  const [tagline = ""] = plain(about).split(/(?<=\.) /);
  const matter = {
    layout: "home",
    hero: {
      name,
      text: "Python for language models, in your user's tab",
      tagline,
      image: { src: `/${picture}`, alt },
      actions: [
        { theme: "brand", text: "Quick start", link: "/quick-start" },
        { theme: "alt", text: "An RLM in 30 lines", link: "/recipes/rlm-in-30-lines" },
        { theme: "alt", text: "API", link: "/reference/sandglass" },
      ],
    },
    features,
  };
  // JSON is YAML.
  const page = `---\n${JSON.stringify(matter)}\n---\n\n${sample}\n`;
  return { name, about: plain(about), page };
}

/** Text without Markdown. @param {string} text */
const plain = (text) =>
  text
    .replace(/\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/[`*]/g, "")
    .replace(/\s+/g, " ");
