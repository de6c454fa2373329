package main

import (
	"context"
	"fmt"
	"os"
)

func main() {
	ctx, stop := untilSignal(context.Background())
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dynamic-controller:", err)
		os.Exit(1)
	}
}
