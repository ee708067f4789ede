// A client of the model server for Node, without a package. docs/how-to/endpoint.md describes the server.
//
//     node client.mjs /var/lib/edgepack/latency/server.sock defects '{"inputs": [{"name": "x", …}]}'
//
// Infers until standard input ends, prints each version that answers, then the numbers of answers and failures.
import http from "node:http";

const [socketPath, model, body] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

function infer() {
  const options = { socketPath, agent, method: "POST", path: `/v2/models/${encodeURIComponent(model)}/infer` };
  return new Promise((resolve, reject) => {
    const request = http.request({ ...options, headers: { "Content-Length": Buffer.byteLength(body) } }, (answer) => {
      const pieces = [];
      answer.on("data", (piece) => pieces.push(piece));
      answer.on("error", reject);
      answer.on("end", () => {
        const found = JSON.parse(Buffer.concat(pieces).toString());
        answer.statusCode === 200 ? resolve(found) : reject(new Error(found.error));
      });
    });
    request.on("error", reject);
    request.end(body);
  });
}

let answers = 0, failures = 0, last = "", isOver = false;
process.stdin.on("end", () => { isOver = true; }).resume();
while (!isOver) {
  answers += 1;
  try {
    const { model_version: version } = await infer();
    if (version !== last) console.log(last = version);
  } catch (error) {
    failures += 1;
    console.error(error.message);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
agent.destroy();
console.log(`${answers} answers, ${failures} failures`);
process.exitCode = failures ? 1 : 0;
