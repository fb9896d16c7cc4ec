// The page that draw.mjs shows in Chromium: a dashboard, with the components of @grafana/ui. What only Grafana's
// application has is written here: defaults of panels, names of series, status history, annotations.
import { useMemo } from 'react';
import { createRoot } from 'react-dom/client';
import {
  applyFieldOverrides, cacheFieldDisplayNames, createTheme, dateTime, FieldConfigOptionsRegistry, FieldType,
  formattedValueToString, getDisplayValueAlignmentFactors, getFieldDisplayName, getFieldDisplayValues, getValueFormat,
  identityOverrideProcessor, locationUtil, outerJoinDataFrames, standardTransformers, standardTransformersRegistry,
  ThemeContext, transformDataFrame,
} from '@grafana/data';
import {
  BigValue, GlobalStyles, Icon, PanelChrome, Table, Text, TimeSeries, UPlotChart, UPlotConfigBuilder, VizLayout,
  VizLegend, VizRepeater,
} from '@grafana/ui';
import angleDown from '@grafana/ui/icons/unicons/angle-down.svg';
import angleRight from '@grafana/ui/icons/unicons/angle-right.svg';
import infoCircle from '@grafana/ui/icons/unicons/info-circle.svg';

const { dashboard, results, variables, mode, width: WIDTH } = (window as any).INPUT;
const ICONS = { 'angle-down': angleDown, 'angle-right': angleRight, 'info-circle': infoCircle };
const CELL = 30, GAP = 8; // Grafana's GRID_CELL_HEIGHT and GRID_CELL_VMARGIN.
const theme = createTheme({ colors: { mode } });

// Icons are fetched by address. There is no server here.
window.fetch = async (address: any) =>
  new Response(ICONS[/([\w-]+)\.svg/.exec(String(address))?.[1] as keyof typeof ICONS] ?? '<svg/>', {
    headers: { 'content-type': 'image/svg+xml' },
  });

// Grafana's application fills these; the packages only hold the registries.
standardTransformersRegistry.setInit(() =>
  ['mergeTransformer', 'organizeFieldsTransformer', 'sortByTransformer'].map(name => {
    const transformation = (standardTransformers as any)[name];
    return { id: transformation.id, name: transformation.name, transformation, editor: null as any };
  }));
locationUtil.initialize({ config: { appSubUrl: '' } as any, getVariablesUrlParams: () => ({}), getTimeRangeForUrl: () => ({}) as any });
const property = (id: string): any => ({
  id, name: id, isCustom: id.startsWith('custom.'), path: id.replace('custom.', ''),
  editor: () => null, override: () => null, process: identityOverrideProcessor, shouldApply: () => true,
});
const registry = new FieldConfigOptionsRegistry(() =>
  ['unit', 'min', 'max', 'decimals', 'displayName', 'color', 'mappings', 'thresholds', 'links', 'noValue',
    ...['drawStyle', 'lineInterpolation', 'lineWidth', 'lineStyle', 'fillOpacity', 'gradientMode', 'showPoints', 'pointSize',
      'spanNulls', 'stacking', 'axisPlacement', 'hideFrom', 'cellOptions', 'align', 'width', 'minWidth', 'inspect'].map(it => `custom.${it}`),
  ].map(property));

// The panels' own defaults, which are in Grafana's application, too.
const DEFAULTS: any = {
  timeseries: {
    color: { mode: 'palette-classic' },
    custom: {
      drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none', showPoints: 'auto',
      pointSize: 5, spanNulls: false, stacking: { mode: 'none', group: 'A' }, axisPlacement: 'auto', hideFrom: {},
    },
  },
  table: { color: { mode: 'thresholds' }, custom: { align: 'auto', cellOptions: { type: 'auto' }, inspect: false } },
  stat: { color: { mode: 'thresholds' } },
  'status-history': { color: { mode: 'thresholds' } },
};

const expanded = (text = '') => Object.entries(variables).reduce((it, [name, value]) => it.replaceAll(`$${name}`, value as string), text);

// As Grafana's Prometheus data source names series.
function seriesName(target: any, labels: any) {
  if (target.legendFormat !== '__auto') {
    return target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_: string, name: string) => labels[name] ?? '');
  }
  return Object.keys(labels).length ? '' : expanded(target.expr);
}

function framesOf(panel: any): any[] {
  const several = panel.targets.length > 1;
  return panel.targets.flatMap((target: any) => {
    const found = results[panel.id][target.refId];
    if (target.format === 'table') {
      const names = [...new Set(found.flatMap((it: any) => Object.keys(it.metric)))] as string[];
      const field = (name: string, type: FieldType, values: any[]) => ({ name, type, config: {}, values });
      return [{ refId: target.refId, length: found.length, fields: [
        field('Time', FieldType.time, found.map((it: any) => it.value[0] * 1000)),
        ...names.map(name => field(name, FieldType.string, found.map((it: any) => it.metric[name] ?? ''))),
        field(several ? `Value #${target.refId}` : 'Value', FieldType.number, found.map((it: any) => Number(it.value[1]))),
      ] }];
    }
    return found.map((series: any) => {
      const points = series.values ? filled(series.values, SECONDS / (panel.maxDataPoints ?? 720)) : [series.value];
      const displayNameFromDS = seriesName(target, series.metric) || undefined;
      return { refId: target.refId, length: points.length, fields: [
        { name: 'Time', type: FieldType.time, config: {}, values: points.map((it: any) => it[0] * 1000) },
        { name: 'Value', type: FieldType.number, labels: series.metric, config: { displayNameFromDS }, values: points.map((it: any) => it[1] && Number(it[1])) },
      ] };
    });
  });
}

// Gaps are nulls, which Grafana's application inserts.
function filled(values: [number, string][], step: number): [number, string | null][] {
  const found = new Map(values);
  const count = SECONDS / step + 1;
  return Array.from({ length: count }, (_, place) => END - SECONDS + place * step).map(at => [at, found.get(at) ?? null]);
}

function preparedOf(panel: any) {
  const own = panel.fieldConfig.defaults, base = DEFAULTS[panel.type];
  const custom = { ...base.custom, ...own.custom };
  if (own.custom?.stacking) custom.stacking = { ...base.custom.stacking, ...own.custom.stacking };
  const thresholds = own.thresholds && { ...own.thresholds, steps: own.thresholds.steps.map((it: any) => ({ ...it, value: it.value ?? -Infinity })) };
  const fieldConfig = { defaults: { ...base, ...own, custom, thresholds }, overrides: panel.fieldConfig.overrides ?? [] };
  let data: any[] = [];
  transformDataFrame(panel.transformations ?? [], framesOf(panel)).subscribe(it => { data = it; });
  data = applyFieldOverrides({ data, fieldConfig, fieldConfigRegistry: registry, replaceVariables: it => it, theme, timeZone: 'utc' });
  return { data, fieldConfig };
}

const SECONDS = 6 * 3600;
const END = Math.max(...Object.values(results).flatMap((it: any) => Object.values(it)).flat().map((it: any) => (it.value ?? it.values.at(-1))[0]));
// Without the last millisecond, there is no tick at the end of the axis, whose label would be cut off.
const to = dateTime(END * 1000 - 1), from = dateTime((END - SECONDS) * 1000);
const timeRange = { from, to, raw: { from, to } };
const moves: number[] = (results.annotations?.A ?? []).map((it: any) => it.values[0][0] * 1000);

// Grafana's annotations are a plugin in its application. This stands in for it.
const moveLines = { fieldMap: {}, indicesOnly: [], init: (builder: UPlotConfigBuilder) => builder.addHook('draw', u => {
  const { ctx, bbox } = u, ratio = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = theme.visualization.getColorByName('purple');
  ctx.lineWidth = ratio;
  for (const at of moves) {
    const x = Math.round(u.valToPos(at, 'x', true));
    ctx.setLineDash([5 * ratio, 5 * ratio]);
    ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top + bbox.height); ctx.lineTo(x - 4 * ratio, bbox.top + bbox.height + 5 * ratio); ctx.lineTo(x + 4 * ratio, bbox.top + bbox.height + 5 * ratio);
    ctx.fill();
  }
  ctx.restore();
}) };

// Colours are made of the series' names. Grafana's application keeps the names when it joins the series; the package's
// TimeSeries removes them, so that the first series has a colour of its own.
const joined = (frames: any[], { x, y }: any) =>
  outerJoinDataFrames({ frames, joinBy: x, keep: y, keepOriginIndices: true, keepDisplayNames: true }) ?? null;

function Graph({ panel, data, width, height }: any) {
  cacheFieldDisplayNames(data);
  return <TimeSeries frames={data} preparePlotFrame={joined} timeRange={timeRange} timeZone="utc" width={width} height={height}
    legend={panel.options.legend} options={panel.options} renderers={moves.length ? [moveLines] : []} />;
}

function Stat({ panel, data, fieldConfig, width, height }: any) {
  const { reduceOptions, orientation, textMode, colorMode, graphMode, justifyMode, wideLayout } = panel.options;
  const getValues = () => getFieldDisplayValues({ fieldConfig, reduceOptions, replaceVariables: it => it, theme, data, timeZone: 'utc' });
  return <VizRepeater getValues={getValues} getAlignmentFactors={getDisplayValueAlignmentFactors} source={data} renderCounter={0}
    width={width} height={height} itemSpacing={3} autoGrid orientation={orientation}
    renderValue={({ value, width, height, count, alignmentFactors, orientation }: any) =>
      <BigValue value={value.display} {...{ width, height, count, alignmentFactors, theme, textMode, colorMode, graphMode, justifyMode }}
        parentOrientation={orientation} disableWideLayout={!wideLayout} />} />;
}

function Rows({ data, fieldConfig, width, height }: any) {
  return <Table data={data[0]} fieldConfig={fieldConfig} width={width} height={height} timeRange={timeRange} />;
}

function thresholdItems({ unit, decimals, thresholds: { steps } }: any) {
  const text = (value: number) => formattedValueToString(getValueFormat(unit)(value, decimals));
  return steps.map(({ value, color }: any) => ({
    label: value === -Infinity ? `< ${text(steps[1].value)}` : `${text(value)}+`, color: theme.visualization.getColorByName(color), yAxis: 1,
  }));
}

// Grafana's status history is in its application, not in its packages. This draws cells with
// the packages' charts, axes, legends and colours: fill opacity 70 %, one row for each series.
function StatusHistory({ panel, data, fieldConfig, width, height }: any) {
  const [config, plotted] = useMemo(() => {
    const builder = new UPlotConfigBuilder('utc');
    const fields = data.map((frame: any) => frame.fields[1]);
    const names = data.map((frame: any) => getFieldDisplayName(frame.fields[1], frame, data));
    const middles = fields.map((_: any, row: number) => row + 0.5);
    builder.addScale({ scaleKey: 'x', isTime: true, orientation: 0, direction: 1, range: () => [from.valueOf(), to.valueOf()] } as any);
    builder.addScale({ scaleKey: 'y', orientation: 1, direction: -1, range: () => [0, fields.length] } as any);
    builder.addAxis({ scaleKey: 'x', isTime: true, placement: 'bottom' as any, timeZone: 'utc', theme, grid: { show: false } });
    builder.addAxis({ scaleKey: 'y', placement: 'left' as any, theme, grid: { show: false }, ticks: { show: false }, splits: () => middles, values: () => names, space: () => 1 } as any);
    builder.addHook('draw', u => {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
      fields.forEach((field: any, row: number) => {
        const times = data[row].fields[0].values;
        const wide = (u.valToPos(times[1], 'x', true) - u.valToPos(times[0], 'x', true)) * panel.options.colWidth;
        const top = u.valToPos(row + 0.5 - panel.options.rowHeight / 2, 'y', true);
        const tall = u.valToPos(row + 0.5 + panel.options.rowHeight / 2, 'y', true) - top;
        times.forEach((at: number, place: number) => {
          if (field.values[place] === null) return;
          const { color } = field.display(field.values[place]);
          const left = u.valToPos(at, 'x', true) - wide / 2;
          ctx.fillStyle = ctx.strokeStyle = color;
          ctx.globalAlpha = 0.7; ctx.fillRect(left, top, wide, tall);
          ctx.globalAlpha = 1; ctx.lineWidth = devicePixelRatio; ctx.strokeRect(left + 0.5, top + 0.5, wide - 1, tall - 1);
        });
      });
      ctx.restore();
    });
    const times = data[0].fields[0].values;
    builder.addSeries({ scaleKey: 'y', theme, pathBuilder: () => null, pointsBuilder: () => null, show: true } as any);
    return [builder, [times, times.map(() => 0)]];
  }, [data]);
  const legend = <VizLayout.Legend placement="bottom">
    <VizLegend {...panel.options.legend} items={thresholdItems(fieldConfig.defaults)} readonly />
  </VizLayout.Legend>;
  return <VizLayout width={width} height={height} legend={legend}>
    {(width: number, height: number) => <UPlotChart config={config as any} data={plotted as any} width={width} height={height} />}
  </VizLayout>;
}

const KINDS: any = { timeseries: Graph, stat: Stat, table: Rows, 'status-history': StatusHistory };

function Panel({ panel, width, height }: any) {
  const prepared = useMemo(() => preparedOf(panel), [panel]);
  const Kind = KINDS[panel.type];
  return <PanelChrome title={expanded(panel.title)} description={panel.description} width={width} height={height}>
    {(inner: number, tall: number) => <Kind panel={panel} {...prepared} width={inner} height={tall} />}
  </PanelChrome>;
}

function Dashboard() {
  const column = (WIDTH - GAP) / 24;
  return <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    {/* Grafana moves legends below graphs on screens narrower than 1200 px. */}
    <style>{`body { background: ${theme.colors.background.canvas}; overflow: hidden; height: auto; min-width: 1200px; }`}</style>
    {dashboard.panels.map((panel: any) => {
      const { x, y, w, h } = panel.gridPos;
      const width = w * column - GAP, height = h * (CELL + GAP) - GAP;
      return <div key={panel.id} style={{ position: 'absolute', left: GAP + x * column, top: GAP + y * (CELL + GAP), width, height }}>
        {panel.type === 'row'
          ? <div style={{ display: 'flex', alignItems: 'center', gap: 8, height }}>
            <Icon name={panel.collapsed ? 'angle-right' : 'angle-down'} />
            <Text element="h2" variant="h6">{expanded(panel.title)}</Text>
          </div>
          : <Panel panel={panel} width={width} height={height} />}
      </div>;
    })}
  </ThemeContext.Provider>;
}

// Text is measured for its place, so the fonts come first.
await Promise.all(['400 14px Inter', '500 14px Inter', '400 14px "Roboto Mono"'].map(it => document.fonts.load(it)));
createRoot(document.getElementById('root')!).render(<Dashboard />);
