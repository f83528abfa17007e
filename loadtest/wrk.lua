-- SPDX-License-Identifier: Apache-2.0
-- For wrk (one thread): streamed completions of a prompt of 5 token ids each, every one different.
-- A line for each reply, when its last byte is there:
--   reply STATUS TOKENS FRAMES SENT ENDED
-- SENT, ENDED: seconds since this script's first request; SENT is that of the latest request before
-- the reply, so with one connection the reply's own. Arguments: see init. wrk cannot end by itself
-- when it has had enough replies, so who reads these lines ends it (client.py).
local ffi = require("ffi")
ffi.cdef [[
typedef struct { long seconds, nanos; } moment;
int clock_gettime(int clock, moment *now);
]]

local CLOCK_MONOTONIC = 1
local now = ffi.new("moment")
local function seconds()
    ffi.C.clock_gettime(CLOCK_MONOTONIC, now)
    return tonumber(now.seconds) + tonumber(now.nanos) * 1e-9
end

local length, vocabulary, temperature, seed
local number, began, sent = 0, nil, 0

function init(arguments)
    length, vocabulary, temperature, seed = unpack(arguments)
end

function request()
    -- wrk asks for one request before the first connection is made.
    if number == 1 then
        began = seconds()
    end
    local ids = {}
    for i = 1, 5 do
        ids[i] = (seed * 104729 + number * 7919 + i * 611) % vocabulary
    end
    number = number + 1
    local body = string.format(
        '{"prompt":[%s],"max_tokens":%d,"ignore_eos":true,"temperature":%s,"stream":true,' ..
        '"stream_options":{"include_usage":true}}', table.concat(ids, ","), length, temperature)
    if began then
        sent = seconds() - began
    end
    return wrk.format("POST", "/v1/completions", {["Content-Type"] = "application/json"}, body)
end

function response(status, headers, body)
    local ended = seconds() - began
    local tokens = body:sub(-1000):match('"completion_tokens":(%d+)') or 0
    local _, frames = body:gsub("data: {", "")
    io.write(string.format("reply %d %d %d %.9f %.9f\n", status, tokens, frames, sent, ended))
    io.flush()
end
