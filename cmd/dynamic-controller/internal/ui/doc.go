// Package ui serves the page for people of the diagnostics. The page is one document without external assets. Its
// script reads the status of the replica from the same server, and changes nothing.
package ui
