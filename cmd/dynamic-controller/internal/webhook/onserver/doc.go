// Package onserver tests packages webhook and servingcert against a real API server that calls the webhook.
package onserver
