package metrics_test

import (
	"github.com/go-logr/logr"
	"k8s.io/client-go/dynamic"
)

// What the example takes for granted.
var (
	logger = logr.Discard()
	client dynamic.Interface
)
