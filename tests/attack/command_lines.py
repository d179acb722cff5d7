NAME="command_lines"
class Part:
    def __init__(self,w): pass
    def run(self,c,n): pass
