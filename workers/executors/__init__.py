"""Where worker processes run.

executor   the seam: start, adopt, watch, end
local      processes of this machine
"""
