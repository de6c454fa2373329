package handlers

import "github.com/dynamic-controller/engine/dynamiccontroller"

// Middleware makes of a handler one that does more. It writes nothing of its own unless it says so.
type Middleware func(dynamiccontroller.Handler) dynamiccontroller.Handler

// Chain is all the middlewares as one: the first is the outermost, which is called first and returns last.
func Chain(middlewares ...Middleware) Middleware {
	return func(handler dynamiccontroller.Handler) dynamiccontroller.Handler {
		for i := len(middlewares) - 1; i >= 0; i-- {
			handler = middlewares[i](handler)
		}
		return handler
	}
}
