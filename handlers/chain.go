package handlers

import "github.com/dynamic-controller/engine/dynamiccontroller"

// Middleware wraps a handler.
type Middleware func(dynamiccontroller.Handler) dynamiccontroller.Handler

// Chain combines middlewares. The first middleware is the outermost: it is called first and returns last.
func Chain(middlewares ...Middleware) Middleware {
	return func(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
		for i := len(middlewares) - 1; i >= 0; i-- {
			handler = middlewares[i](handler)
		}
		return handler
	}
}
