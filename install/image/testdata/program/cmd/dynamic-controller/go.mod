module example.com/engine/cmd/dynamic-controller

go 1.26.0
