module example.com/engine/nested

go 1.26.0

require example.com/engine v0.0.0-00010101000000-000000000000

replace example.com/engine => ..
