// A real identity provider for tests: node provider.mjs DIR, where DIR contains node_modules.
// It prints its issuer, and then serves until it is ended. Every name is accepted, without a password.
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";
import { resolve } from "node:path";

const dir = process.argv[2];
const { default: Provider } = await import(pathToFileURL(resolve(dir, "node_modules/oidc-provider/lib/index.js")).href);

const server = createServer();
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const issuer = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  clients: [{ client_id: "mariposa", client_secret: "a secret of tests", redirect_uris: ["http://127.0.0.1/v1/oidc/callback"], grant_types: ["authorization_code"], response_types: ["code"] }],
  pkce: { required: () => true },
  claims: { openid: ["sub"], profile: ["preferred_username"], email: ["email"] },
  features: { devInteractions: { enabled: false } },
  cookies: { keys: ["tests"] },
  // The subject is not the name, as in real providers.
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, preferred_username: id.replace(/^subject-of-/, ""), email: id.replace(/^subject-of-/, "") + "@example.com" }) }),
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  // People agree to everything.
  loadExistingGrant: async (ctx) => {
    const grant = new ctx.oidc.provider.Grant({ clientId: ctx.oidc.client.clientId, accountId: ctx.oidc.session.accountId });
    grant.addOIDCScope("openid profile email");
    await grant.save();
    return grant;
  },
});

// Servers of tests listen at any port.
const { redirectUriAllowed } = provider.Client.prototype;
provider.Client.prototype.redirectUriAllowed = function allowed(uri) {
  const url = new URL(uri);
  return redirectUriAllowed.call(this, uri) || (url.hostname === "127.0.0.1" && url.pathname === "/v1/oidc/callback");
};

const callback = provider.callback();
server.on("request", async (req, res) => {
  const url = new URL(req.url, issuer);
  if (!url.pathname.startsWith("/interaction/")) return callback(req, res);
  if (req.method === "GET") {
    res.setHeader("Content-Type", "text/html; charset=utf-8");
    res.end(`<!doctype html><html lang="en"><title>Provider</title><form method="post"><label>Name <input name="login"></label><button>Continue</button><button name="refuse" value="1">Refuse</button></form></html>`);
    return;
  }
  let body = "";
  for await (const part of req) body += part;
  const form = new URLSearchParams(body);
  const result = form.get("refuse") ? { error: "access_denied" } : { login: { accountId: "subject-of-" + form.get("login") } };
  await provider.interactionFinished(req, res, result, { mergeWithLastSubmission: false });
});

console.log(issuer);
