// Finding one's way in a graph that may hold subgraphs and reroutes.

const SUBGRAPH_INPUT = "-10"; // id of the node that stands for a subgraph's inputs, inside it

/** The outermost graph. */
export function rootGraph(app) {
  return app.rootGraph ?? app.graph;
}

function nodesOf(graph) {
  return graph?.nodes ?? graph?._nodes ?? [];
}

/** The node that an execution id such as "4:2" (node 2 in the subgraph of node 4) means, or undefined. */
export function nodeByExecutionId(app, id) {
  let graph = rootGraph(app);
  let node;
  for (const part of String(id).split(":")) {
    node = nodesOf(graph).find((each) => String(each.id) === part);
    graph = node?.subgraph;
  }
  return node;
}

function* nodesWithin(graph) {
  for (const node of nodesOf(graph)) {
    yield node;
    if (node.subgraph) yield* nodesWithin(node.subgraph);
  }
}

function linkOf(graph, id) {
  if (id === null || id === undefined) return undefined;
  return graph.getLink?.(id) ?? graph.links?.get?.(id) ?? graph.links?.[id];
}

/** Whether an input of a node is connected. */
export function isConnected(node, name) {
  const input = node.inputs?.find((each) => each.name === name);
  return input?.link !== null && input?.link !== undefined;
}

/** The node that feeds an input, through reroutes and in and out of subgraphs; undefined if there is none. */
export function sourceOf(app, node, name) {
  const input = node.inputs?.find((each) => each.name === name);
  return input ? follow(app, node.graph, input.link, 0) : undefined;
}

function follow(app, graph, linkId, depth) {
  const link = graph && depth < 32 ? linkOf(graph, linkId) : undefined;
  if (!link) return undefined;
  if (String(link.origin_id) === SUBGRAPH_INPUT) {
    for (const outer of nodesWithin(rootGraph(app))) {
      if (outer.subgraph === graph) return follow(app, outer.graph, outer.inputs?.[link.origin_slot]?.link, depth + 1);
    }
    return undefined;
  }
  const origin = nodesOf(graph).find((each) => String(each.id) === String(link.origin_id));
  if (origin?.subgraph) {
    const inner = origin.subgraph.outputs?.[link.origin_slot]?.linkIds?.[0];
    return follow(app, origin.subgraph, inner, depth + 1);
  }
  if (origin?.type === "Reroute") return follow(app, graph, origin.inputs?.[0]?.link, depth + 1);
  return origin;
}

/** The value of a node's widget. */
export function valueOf(node, name) {
  return node?.widgets?.find((each) => each.name === name)?.value;
}

/** The values of all widgets of a node, by name. */
export function valuesOf(node) {
  return Object.fromEntries(node.widgets.map(({ name, value }) => [name, value]));
}
