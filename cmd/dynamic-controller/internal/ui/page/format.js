// Functions that return text for numbers and times.

const integers = new Intl.NumberFormat("en-US");

function formatCount(n) {
  return integers.format(n || 0);
}

// formatBytes returns at least two significant digits.
function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let n = bytes || 0;
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1024;
    unit++;
  }
  return (unit > 0 && n < 9.95 ? n.toFixed(1) : String(Math.round(n))) + " " + units[unit];
}

function formatRate(perSecond) {
  if (perSecond === null || Number.isNaN(perSecond)) {
    return "";
  }
  if (perSecond === 0) {
    return "0";
  }
  if (perSecond < 0.005) {
    return "<0.01";
  }
  const digits = perSecond < 9.995 ? 2 : perSecond < 99.95 ? 1 : 0;
  return perSecond >= 1000 ? integers.format(Math.round(perSecond)) : perSecond.toFixed(digits);
}

// formatDuration returns at most two units, like kubectl.
function formatDuration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) {
    return s + "s";
  }
  const minutes = Math.floor(s / 60);
  if (minutes < 10) {
    return minutes + "m" + (s % 60 ? (s % 60) + "s" : "");
  }
  if (minutes < 180) {
    return minutes + "m";
  }
  const hours = Math.floor(minutes / 60);
  if (hours < 48) {
    return hours + "h" + (hours < 8 && minutes % 60 ? (minutes % 60) + "m" : "");
  }
  const days = Math.floor(hours / 24);
  return days + "d" + (days < 8 && hours % 24 ? (hours % 24) + "h" : "");
}

function formatSeconds(seconds) {
  if (!seconds) {
    return "0";
  }
  return seconds < 10 ? seconds.toFixed(1) + "s" : formatDuration(seconds);
}

function formatTime(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString("en-GB");
}

// formatDate returns a local date and time that can be sorted as text.
function formatDate(milliseconds) {
  return new Date(milliseconds).toLocaleString("sv-SE");
}
