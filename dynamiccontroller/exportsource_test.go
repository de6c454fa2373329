package dynamiccontroller

import "github.com/dynamic-controller/engine/dynamiccontroller/internal/recordclient"

// WithSource makes the controller list and watch objects of the source instead of those of a client.
func WithSource(source recordclient.Source) Option {
	return func(s *settings) { s.source = source }
}
