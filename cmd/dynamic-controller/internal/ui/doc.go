// Package ui serves a web page that shows the status of a replica. The page is one document without external assets.
// Its script reads the status from the same server, and changes nothing.
package ui
