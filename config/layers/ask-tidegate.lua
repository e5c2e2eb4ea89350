-- Action for HAProxy: asks Tidegate whether a request may pass, and answers with its 429 if not. Without a decision (a
-- timeout, a Tidegate that is down, a 503 because of on_store_failure: error) the request passes. After another 4xx,
-- which means that the request to Tidegate is wrong, it is rejected with 403.

local url = "http://127.0.0.1:8080/authz?domain=edge"

-- Headers of the client that the policy maps to descriptors.
local asked = { "x-api-token" }

-- Headers of Tidegate's 429 that the client gets. Those of --headers have names of their own.
local returned = { "content-type", "retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset" }

core.register_action("ask_tidegate", { "http-req" }, function(txn)
  local sent = txn.http:req_get_headers()
  local headers = {
    ["x-forwarded-for"] = { txn.f:src() },
    ["x-forwarded-method"] = { txn.f:method() },
    ["x-forwarded-uri"] = { txn.f:path() },
    ["x-forwarded-host"] = { sent["host"] and sent["host"][0] or "" },
  }
  for _, name in ipairs(asked) do
    if sent[name] then
      headers[name] = { sent[name][0] }
    end
  end
  local answer = core.httpclient():get({ url = url, headers = headers, timeout = 100 })
  if not answer or answer.status < 400 or answer.status >= 500 then
    return
  end
  if answer.status ~= 429 then
    txn:done(txn:reply({ status = 403 }))
  end
  local reply = txn:reply({ status = 429, reason = "Too Many Requests", body = answer.body })
  for _, name in ipairs(returned) do
    for _, value in pairs(answer.headers[name] or {}) do
      reply:add_header(name, value)
    end
  end
  txn:done(reply)
end)
