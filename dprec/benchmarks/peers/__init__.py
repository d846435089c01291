"""The systems that dprec is compared with, on shapes that all share, each checked before it is timed."""
