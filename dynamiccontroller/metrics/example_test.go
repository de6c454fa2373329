package metrics_test

import (
	"github.com/go-logr/logr"
	"k8s.io/client-go/dynamic"
)

// The example uses these variables. A real program creates its own logger and client.
var (
	logger = logr.Discard()
	client dynamic.Interface
)
