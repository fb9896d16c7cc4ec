// Draws a dashboard with Grafana's own components, in Chromium, from query results that a test saved:
//   node draw.mjs DASHBOARD.json RESULTS_FOLDER PICTURE
// It writes PICTURE-light.png and PICTURE-dark.png.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const HERE = dirname(fileURLToPath(import.meta.url));
// A rendered document is about 860 px wide: type of 12 px has 9 px there.
const WIDTH = 1160;
const [dashboardPath, folder, picture] = process.argv.slice(2);
// The variables' values in the test.
const variables = { namespace: 'shop', vm: 'db', node: 'node-42', rule_psi: '0.4' };

// esbuild takes imports of .mjs files as Node does: for these CommonJS packages, the default import would be an object
// with the property `default`. Files of a namespace have no ending, and get the default export itself.
const defaults = { name: 'defaults', setup({ onResolve, onLoad }) {
  const resolved = createRequire(join(HERE, 'draw.mjs')).resolve;
  onResolve({ filter: /^(react-custom-scrollbars-2|react-use\/lib\/\w+|calculate-size|react-highlight-words)$/, namespace: 'file' },
    ({ path }) => ({ path, namespace: 'defaults' }));
  onLoad({ filter: /./, namespace: 'defaults' },
    ({ path }) => ({ contents: `export { default } from ${JSON.stringify(resolved(path))}`, resolveDir: HERE }));
  // The editor of code is 2 MB of the bundle, and in no panel.
  onResolve({ filter: /^(monaco-editor|@monaco-editor\/react)$/ }, ({ path }) => ({ path, namespace: 'empty' }));
  onLoad({ filter: /./, namespace: 'empty' }, () => ({ contents: 'module.exports = {}' }));
} };

async function bundled() {
  const { outputFiles } = await build({
    entryPoints: [join(HERE, 'draw.tsx')], bundle: true, write: false, outdir: HERE, format: 'esm', target: 'esnext', minify: true,
    jsx: 'automatic', plugins: [defaults], loader: { '.svg': 'text' }, define: { 'process.env.NODE_ENV': '"production"' },
    alias: { '@grafana/ui/icons': join(HERE, 'node_modules/@grafana/ui/dist/public/img/icons') },
    logLevel: 'warning',
  });
  const text = ending => outputFiles.find(it => it.path.endsWith(ending))?.text ?? '';
  const font = (family, weight, file) => {
    const data = readFileSync(join(HERE, 'node_modules/@fontsource', file)).toString('base64');
    return `@font-face{font-family:"${family}";font-weight:${weight};src:url(data:font/woff2;base64,${data})}`;
  };
  const fonts = font('Inter', 400, 'inter/files/inter-latin-400-normal.woff2')
    + font('Inter', 500, 'inter/files/inter-latin-500-normal.woff2')
    + font('Roboto Mono', 400, 'roboto-mono/files/roboto-mono-latin-400-normal.woff2');
  // The fonts come after the head: they replace those of GlobalStyles, which only a Grafana serves.
  return `<!doctype html><meta charset="utf-8"><head><style>${text('.css')}</style></head><body><style>${fonts}</style>`
    + `<div id="root"></div><!--INPUT--><script type="module">${text('.js').replaceAll('</script', '<\\/script')}</script></body>`;
}

/** Moves panels up by the height of the collapsed rows above, as Grafana does. */
function closedUp(dashboard) {
  let hidden = 0;
  for (const panel of dashboard.panels) {
    panel.gridPos.y -= hidden;
    if (panel.collapsed) {
      const inside = panel.panels.map(it => it.gridPos);
      hidden += Math.max(...inside.map(it => it.y + it.h)) - Math.min(...inside.map(it => it.y));
    }
  }
  return Math.max(...dashboard.panels.map(it => it.gridPos.y + it.gridPos.h));
}

const dashboard = JSON.parse(readFileSync(dashboardPath, 'utf8'));
const results = JSON.parse(readFileSync(join(folder, basename(dashboardPath)), 'utf8'));
const height = closedUp(dashboard) * 38 + 8;
const page = await bundled();

function draw(mode) {
  const input = JSON.stringify({ dashboard, results, variables, mode, width: WIDTH }).replaceAll('<', '\\u003c');
  const temporary = mkdtempSync(join(tmpdir(), 'draw-'));
  try {
    writeFileSync(join(temporary, 'page.html'), page.replace('<!--INPUT-->', () => `<script>window.INPUT=${input}</script>`));
    const ran = spawnSync('/usr/bin/chromium', [
      '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--force-device-scale-factor=1',
      '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run',
      '--disable-dev-shm-usage', `--user-data-dir=${temporary}/profile`, `--window-size=${WIDTH},${height}`,
      '--virtual-time-budget=10000', '--enable-logging=stderr', `--screenshot=${resolve(`${picture}-${mode}.png`)}`, `file://${temporary}/page.html`,
    ], { encoding: 'utf8', timeout: 180_000 });
    const said = ran.stderr.split('\n').filter(it => it.includes('CONSOLE'));
    if (said.length) console.error(said.join('\n'));
    if (ran.status !== 0 || said.some(it => it.includes('Uncaught'))) {
      console.error(ran.stderr.slice(-3000));
      process.exitCode = 1;
    }
  } finally {
    rmSync(temporary, { recursive: true, force: true });
  }
}

for (const mode of ['light', 'dark']) draw(mode);
