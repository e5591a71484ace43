-- Cycles over the containers of a fleet, or repeats one request; every request is built once, before the load begins.
-- Arguments: PATH COUNT HEADER VALUE [TOKENS]. A %05d in PATH takes 0 to COUNT - 1. TOKENS: a file with a line for each request, its token.
local requests, turn = {}, 0

function init(args)
  local headers = {[args[3]] = args[4]}
  local tokens = args[5] and io.lines(args[5])
  for i = 0, tonumber(args[2]) - 1 do
    if tokens then
      headers["Authorization"] = "Bearer " .. tokens()
    end
    requests[i + 1] = wrk.format("GET", string.format(args[1], i), headers)
  end
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end

-- The last line of output, which `bench/load.py` reads. Latencies are in microseconds.
function done(summary, latency, _)
  local e = summary.errors
  io.write(string.format(
    '{"requests":%d,"microseconds":%d,"bytes":%d,"failed":%d,"refused":%d,"p50":%d,"p99":%d,"p999":%d,"max":%d}\n',
    summary.requests, summary.duration, summary.bytes, e.connect + e.read + e.write + e.timeout, e.status,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9), latency.max))
end
