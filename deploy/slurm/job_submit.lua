-- Lets jobs that say so begin when the grid is clean, as the table that `lowtide drive --table` writes has it.
--
--   sbatch --comment='green;finish-by=8am' -t 2:00:00 train.sh      done by the next 8 o'clock
--   sbatch --comment='green;finish-by=+20h' -t 2:00:00 train.sh     done 20 hours from now
--
-- Nothing is planned here and nobody is asked: a file is read, a begin is set no later than is safe, and the
-- comment gets the tag by which lowtide drive looks after the job. Whatever is missing, old or cannot be read
-- leaves a job as it is. To be put beside slurm.conf, with JobSubmitPlugins=lua; where there is a job_submit.lua
-- already, load this one and call lowtide_submit(job_desc) in its slurm_job_submit.

local TABLE = os.getenv("LOWTIDE_TABLE") or "/var/lib/lowtide/begins"
local DAY = 86400
-- What Slurm has for "not set".
local NOT_SET = 4294967294
math.randomseed(os.time() + math.floor(os.clock() * 1e6))

local function read_table(now)
  local file = io.open(TABLE, "r")
  if file == nil then return nil end
  local found = { waits = {}, begins = {} }
  for line in file:lines() do
    local words = {}
    for word in line:gmatch("%S+") do words[#words + 1] = word end
    if words[1] == "lowtide" and words[2] == "1" then
      found.made, found.valid, found.loops = tonumber(words[3]), tonumber(words[4]), tonumber(words[5])
    elseif words[1] == "wait" then
      found.waits[words[2]] = tonumber(words[3])
    elseif words[1] == "begin" then
      local moments = {}
      for k = 3, #words do moments[#moments + 1] = tonumber(words[k]) end
      found.begins[#found.begins + 1] = { length = tonumber(words[2]), moments = moments }
    end
  end
  file:close()
  if found.loops == nil or found.valid == nil or now > found.valid then return nil end
  return found
end

-- Seconds since the epoch by which a job is to be done: +20h, +90m, +2d, 8am, 14:30, or such a number.
local function read_finish(text, now)
  local count, unit = text:match("^%+(%d+)([mhd])$")
  if count then return now + tonumber(count) * ({ m = 60, h = 3600, d = DAY })[unit] end
  if text:match("^%d%d%d%d%d%d%d%d%d%d$") then return tonumber(text) end
  local hour, minute, half = text:match("^(%d%d?):?(%d?%d?)([ap]?m?)$")
  hour, minute = tonumber(hour), tonumber(minute or "") or 0
  if hour == nil or (half ~= "" and (half == "a" or half == "p" or hour < 1 or hour > 12)) then return nil end
  if half == "am" then hour = hour % 12 elseif half == "pm" then hour = hour % 12 + 12 end
  if hour > 23 or minute > 59 then return nil end
  local day = os.date("*t", now)
  -- Of a night in which clocks are changed os.time finds the right one.
  local at = os.time({ year = day.year, month = day.month, day = day.day, hour = hour, min = minute, sec = 0 })
  if at <= now then
    at = os.time({ year = day.year, month = day.month, day = day.day + 1, hour = hour, min = minute, sec = 0 })
  end
  return at
end

local function is_set(number)
  return number ~= nil and number > 0 and number < NOT_SET - 1
end

local function token()
  local letters, found = "0123456789abcdefghjkmnpqrstvwxyz", ""
  for _ = 1, 10 do
    local k = math.random(#letters)
    found = found .. letters:sub(k, k)
  end
  return found
end

-- The latest of the moments of a length that is not later than a job has to begin by; nil for now.
local function chosen(begins, length, latest, now)
  local best
  for _, each in ipairs(begins) do
    if each.length >= length and (best == nil or each.length < best.length) then best = each end
  end
  local found
  for _, moment in ipairs(best and best.moments or {}) do
    if moment <= latest and moment > now then found = moment end
  end
  return found
end

function lowtide_submit(job)
  local comment = job.comment or ""
  local wish = comment:match("green;finish%-by=([^%s;]+)")
  if wish == nil or comment:find("lt1:", 1, true) then return end
  -- Who waits at a terminal is not made to wait, and a job of several parts begins as one.
  if job.script == nil or job.script == "" or is_set((job.het_job_offset or NOT_SET) + 1) then return end
  -- Who says himself when it starts, or makes it depend on others, is left alone.
  if is_set(job.begin_time) or is_set(job.deadline) or job.reservation or job.array_inx then return end
  if job.dependency and job.dependency ~= "" then return end
  if not is_set(job.time_limit) then
    slurm.log_user("lowtide: without a time limit (-t) it begins now")
    return
  end
  local now = os.time()
  local finish = read_finish(wish, now)
  if finish == nil then
    slurm.log_user("lowtide: finish-by is +20h, 8am, 14:30 or seconds since 1970, not " .. wish .. ": it begins now")
    return
  end
  local known = read_table(now)
  if known == nil then
    slurm.log_user("lowtide: nobody has written of late when it is clean: it begins now")
    return
  end
  local length = job.time_limit * 60
  -- Of several partitions the first counts, as everywhere else.
  local partition = (job.partition or ""):match("^[^,]*")
  local wait = math.max(known.waits[partition] or known.waits["*"] or 14400, partition == "" and 14400 or 0)
  local latest = finish - length - wait - known.loops
  if latest <= now then
    slurm.log_user("lowtide: its deadline leaves no room to wait: it begins now")
    return
  end
  local begin = chosen(known.begins, length, latest, now)
  local tag = string.format('lt1:{"id":"%s","dl":%d,"a":%d,"r":%d,"p":0,"w":%d,"bl":1', token(), finish, now, length, wait)
  if begin then
    job.begin_time = begin
    tag = tag .. string.format(',"b":%d', begin)
    slurm.log_user("lowtide: it begins " .. os.date("!%Y-%m-%d %H:%M UTC", begin))
  end
  job.comment = comment .. " " .. tag .. "}"
  job.admin_comment = "lowtide: done by " .. os.date("!%Y-%m-%dT%H:%M:%SZ", finish)
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  -- Whatever goes wrong here, the job is submitted as it is.
  local fine, problem = pcall(lowtide_submit, job_desc)
  if not fine then slurm.log_info("lowtide: %s", tostring(problem)) end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
